"""An agent of NIXL with the local pool registered: what reads others' pools, or lets them read this one.

Whoever owns the connector calls it; it starts no thread of its own. Nothing moves unless one of its methods
is called, here and, where UCX has no one-sided way (TCP), at the other end too.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from baton_kv.nixl_library import NixlLibrary, ReadFailedError

Regions = npt.NDArray[np.uint64]
"""Memory, a row each: address, number of bytes, device."""
_BACKEND: Final = "UCX"
_NUM_LAST_STEPS: Final = 20
_LAST_STEP_S: Final = 0.001


class NixlAgent:
    """Destroyed by `close`, after which nothing that it has begun writes to the pool any more."""

    def __init__(self, library: NixlLibrary, pool: torch.Tensor) -> None:
        """Register the whole of `pool`, which is contiguous, on any device; it has to outlive the agent."""
        self._library = library
        config = library.api.nixl_agent_config(enable_prog_thread=False, backends=[_BACKEND])
        self.name = f"baton-{secrets.token_hex(8)}"
        self._agent: Any = library.api.nixl_agent(self.name, config)
        self.memory: Literal["DRAM", "VRAM"] = "VRAM" if pool.device.type == "cuda" else "DRAM"
        self._remote_names: list[str] = []
        self._registered: Any = self._agent.register_memory([pool])

    @property
    def metadata(self) -> bytes:
        """Metadata that another agent needs to read this one's pool."""
        metadata: bytes = self._agent.get_agent_metadata()
        return metadata

    def add(self, metadata: bytes) -> str:
        """Make another agent known; returns its name."""
        name: str = self._agent.add_remote_agent(metadata)
        self._remote_names.append(name)
        return name

    def read(self, local: Regions, remote_name: str, remote: Regions, remote_memory: str) -> NixlRead:
        """Begin to read from another agent's pool; returns the read that is under way."""
        handle = self._agent.initialize_xfer(
            "READ",
            self._agent.get_xfer_descs(local, self.memory),
            self._agent.get_xfer_descs(remote, remote_memory),
            remote_name,
        )
        return NixlRead(self._agent, handle)

    def notify(self, remote_name: str, message: bytes) -> None:
        """Send a message, which may come late, or twice, or never."""
        self._agent.send_notif(remote_name, message)

    def advance(self) -> Iterator[tuple[str, bytes]]:
        """Let move what can; yields the messages that have come, each with its sender's name."""
        for name, messages in self._agent.get_new_notifs().items():
            for message in messages:
                yield name, message

    def close(self, reads: Iterable[NixlRead] = ()) -> None:
        """Destroy the agent; `reads` are those not over, which all end here.

        UCX ends the process if it is destroyed before it has taken note of a connection that was lost, so it
        is given a moment for that.
        """
        for read in reads:
            self._try(read.release)
        for name in self._remote_names:
            self._try(self._agent.remove_remote_agent, name)
        for _ in range(_NUM_LAST_STEPS if self._remote_names else 0):
            self._try(self._agent.get_new_notifs)
            time.sleep(_LAST_STEP_S)
        self._try(self._agent.deregister_memory, self._registered)
        del self._registered, self._agent

    def _try(self, call: Callable[..., object], *arguments: object) -> None:
        """Do what may fail when the other end is gone: it is over either way."""
        with suppress(*self._library.errors):
            call(*arguments)


class NixlRead:
    """A read under way, kept until it is over or its agent is closed: to forget it would not stop it."""

    def __init__(self, agent: Any, handle: Any) -> None:
        self._agent = agent
        self._handle = handle
        self._state: str = agent.transfer(handle)

    def is_over(self) -> bool:
        """Let move what can; whether all bytes are there.

        Raises:
            ReadFailedError: it is over without them; the library's own errors say why.
        """
        if self._state == "PROC":
            self._state = self._agent.check_xfer_state(self._handle)
        if self._state == "ERR":
            raise ReadFailedError("the read has failed")
        return self._state == "DONE"

    def release(self) -> None:
        """Give up what the library keeps for it."""
        try:
            self._handle.release()
        finally:
            del self._handle, self._agent
