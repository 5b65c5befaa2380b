"""Backend over NIXL and UCX, an optional extra: RDMA, and memory of GPUs without a way through the host.

A consumer reads a producer's memory while the producer computes. Nothing is checksummed and a read cannot be
stopped: the consumer asks the producer afterwards whether the lease still held, and blocks of an aborted pull
wait until nothing writes to them any more. Pools on CUDA are registered where they lie; no test has run that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.worker_events import Pull, PullAborted, PullDone
from baton_kv.connector import (
    Capabilities,
    ProducerUnreachableError,
    VerifiesBy,
)
from baton_kv.description import Offer
from baton_kv.layouts import Blocks, convert_blocks
from baton_kv.nixl_agent import NixlAgent
from baton_kv.nixl_consumer import LocalPool, NixlLink, NixlTimings
from baton_kv.nixl_library import load_nixl
from baton_kv.nixl_messages import PoolAddress, decode_address
from baton_kv.nixl_producer import PoolServer
from baton_kv.part_reads import PartRead
from baton_kv.pool_bytes import PoolBytes, open_pool
from baton_kv.pool_connector import PoolConnector
from baton_kv.running_pull import require_in_range
from baton_kv.transport import Listen

FIRST_WAIT_S: Final = 0.00005
"""Between two looks while blocks are on their way, in or out; twice as long after each that found nothing."""
BUSY_WAIT_S: Final = 0.0005
"""The longest of these."""
MOVED_S: Final = 0.0001
"""A look that takes longer meanwhile has moved bytes, which move only while one looks: it is repeated."""
IDLE_WAIT_S: Final = 0.005
"""Between two looks otherwise: a consumer's first word is heard so much later."""


@dataclass(frozen=True, slots=True)
class _Local:
    pool: LocalPool
    blocks: PoolBytes
    server: PoolServer
    address: str


@dataclass(frozen=True, slots=True)
class _Peer:
    epoch: int
    num_blocks: int
    link: NixlLink


class NixlConnector(PoolConnector[_Peer]):
    """Reads blocks out of the memory of its peers.

    UCX chooses the way (`UCX_TLS`, `UCX_NET_DEVICES`) and listens on the interfaces that it finds, for
    everybody and in plain text.
    """

    capabilities = Capabilities(
        name="nixl", verifies_by=VerifiesBy.CONFIRMATION, has_safe_abort=False, pins_pool=True
    )

    def __init__(
        self, spec: KVSpec, epoch: int, where: Listen | None = None, timings: NixlTimings | None = None
    ) -> None:
        """Load the library.

        Raises:
            InvalidConfigError: it is not there, or what workers send each other is to be encrypted.
        """
        if where is not None and where.curve is not None:
            raise InvalidConfigError(
                "kv_transport is 'nixl', which does not encrypt; allowed: auto, shared_memory and tcp, "
                "or nixl with --no-peer-encryption"
            )
        super().__init__(spec, epoch)
        self._library = load_nixl()
        self._timings = timings or NixlTimings()
        self._woken = threading.Event()
        self._local: _Local | None = None
        self._has_moved = False
        """True if the last `poll` should be repeated at once."""
        self._pause_s = FIRST_WAIT_S
        """Before the next look while blocks are on their way."""

    # --- the local pool ---

    def register(self, pool: torch.Tensor) -> None:
        """Let peers read a pool that is placed already, on any device, instead of allocating one."""
        if self._local is not None:
            raise RuntimeError("the pool is already allocated")
        make_agent = partial(NixlAgent, self._library, pool)
        agent = make_agent()
        base, device = pool.data_ptr(), pool.device.index or 0
        address = PoolAddress(metadata=agent.metadata, memory=agent.memory, device=device, base=base)
        local = LocalPool(
            library=self._library,
            make_agent=make_agent,
            base=base,
            device=device,
            block_bytes=self._spec.block_bytes,
            num_blocks=len(pool),
        )
        self._local = _Local(local, open_pool(pool), PoolServer(agent), address.encode())

    @property
    def offer(self) -> Offer:
        return Offer(self.capabilities.name, self._pool.address)

    @property
    def num_blocks(self) -> int:
        return len(self._pool.blocks)

    def compute_checksums(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        require_in_range("block_id", block_ids, len(self._pool.blocks))
        return (None,) * len(block_ids)

    # --- pools of others ---

    def connect(self, peer_id: str, description: bytes, part: PartRead | None = None) -> None:
        self.disconnect(peer_id)
        described = self._decode(description, part)
        address = described.address(self.capabilities.name)
        link = NixlLink(
            f"producer {peer_id!r}",
            decode_address(address),
            self._pool.pool,
            self._timings,
            part,
            finish=partial(self._convert, described.spec(self._spec)),
            on_end=self._on_end,
        )
        try:
            link.open()
        except self._library.errors as error:
            raise ProducerUnreachableError(
                "address", address, f"that of a live producer ({error})"
            ) from error
        self._peers[peer_id] = _Peer(described.epoch, described.num_blocks, link)

    def disconnect(self, peer_id: str) -> None:
        peer = self._peers.pop(peer_id, None)
        if peer is not None:
            peer.link.close(f"peer {peer_id!r} was disconnected")

    def _begin(self, peer: _Peer, pull: Pull) -> None:
        peer.link.add(pull)

    def abort(self, pull_id: int) -> PullAborted:
        self._drop_ended(pull_id)
        source = self._sources.get(pull_id)
        is_fenced = source is None or self._peers[source].link.abort(time.monotonic(), pull_id)
        if is_fenced:
            self._sources.pop(pull_id, None)
        return PullAborted(pull_id=pull_id, is_fenced=is_fenced)

    # --- running ---

    def poll(self) -> list[PullDone]:
        now = time.monotonic()
        if self._local is not None:
            self._local.server.advance(now)
        moves = [peer.link.advance(now) for peer in self._peers.values()]
        self._has_moved = any(moves) or (self._is_busy and time.monotonic() > now + MOVED_S)
        if self._has_moved:
            self._pause_s = FIRST_WAIT_S
        return self._take_ended()

    def wait(self, timeout_s: float | None = None) -> None:
        wait_s = IDLE_WAIT_S
        if self._has_moved or self._ended:
            wait_s = 0.0
        elif self._is_busy:
            wait_s, self._pause_s = self._pause_s, min(2 * self._pause_s, BUSY_WAIT_S)
        self._woken.wait(wait_s if timeout_s is None else min(wait_s, timeout_s))
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        for peer_id in list(self._peers):
            self.disconnect(peer_id)
        self._ended.clear()
        if self._local is not None:
            self._local.server.close()
            self._local = None

    # --- parts ---

    @property
    def _pool(self) -> _Local:
        if self._local is None:
            raise RuntimeError("the pool is not allocated")
        return self._local

    @property
    def _is_busy(self) -> bool:
        """True if blocks are on their way, in or out."""
        return bool(self._sources) or (self._local is not None and self._local.server.is_being_read)

    def _convert(self, spec: KVSpec, block_ids: Sequence[int]) -> None:
        """Bring blocks that have arrived in the layout of `spec` into that of the local pool."""
        if spec == self._spec:
            return
        shape = (len(block_ids), self._spec.block_bytes)
        rows: Blocks = np.empty(shape, np.uint8)
        converted: Blocks = np.empty(shape, np.uint8)
        self._pool.blocks.read(block_ids, slice(0, shape[1]), rows)
        convert_blocks(rows, spec, converted, self._spec)
        self._pool.blocks.write(block_ids, slice(0, shape[1]), converted)
