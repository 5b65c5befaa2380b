"""What a worker says of itself when it registers, and what it reports while it runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from baton_core.errors import IncompatibleWorkerError
from baton_core.paging import Paging

PROTOCOL_VERSION: Final = 1


class Role(StrEnum):
    """What a worker prefers to do; a mixed worker does both."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @property
    def can_prefill(self) -> bool:
        return self is not Role.DECODE

    @property
    def can_decode(self) -> bool:
        return self is not Role.PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """What two workers must agree on before blocks may move between them."""

    model: str
    """Hash of the configuration, of the weights' headers, sizes and samples, and of how keys are rotated."""
    dtype: str
    block_size: int
    kv_layout: str
    """What a block holds, by `KVSpec.layout`."""
    transport: str
    """Names of the transports that the worker speaks, joined by `+`; one in common is enough."""
    kv_windows: tuple[int | None, ...] = (None,)
    """Window of each KV group in tokens; None sees all."""
    protocol_version: int = PROTOCOL_VERSION

    @property
    def paging(self) -> Paging:
        """How tokens lie in blocks, at every worker of this identity."""
        return Paging(block_size=self.block_size, windows=self.kv_windows)

    def require_compatible(self, other: ModelIdentity) -> None:
        """Refuse `other`, a worker that wants to join a worker of this identity.

        Raises:
            IncompatibleWorkerError: names the first field that differs, its value, and what is allowed.
        """
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            share_one = field.name == "transport" and {*mine.split("+")} & {*theirs.split("+")}
            if mine != theirs and not share_one:
                raise IncompatibleWorkerError(
                    f"{field.name} is {theirs!r}; allowed: {mine!r}, as in the workers already registered"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as it registers at a router. A restarted worker has a new epoch."""

    worker_id: str
    epoch: int
    role: Role
    identity: ModelIdentity
    max_model_len: int
    vocab_size: int
    num_blocks: int
    max_num_seqs: int
    peer_address: str
    """Where the peer channel listens, `tcp://host:port` or `ipc://...`."""
    kv_description: bytes
    """The connector's own description of its pool, opaque to the router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """A worker's state, sent with every heartbeat."""

    num_running: int = 0
    num_waiting: int = 0
    num_queued_tokens: int = 0
    """Prompt tokens that are not computed yet."""
    num_available_blocks: int = 0
    """Free and cached blocks together: what a new request could take."""
    step_age_s: float = 0.0
    """How long the step in flight has been running; 0 when none is."""
