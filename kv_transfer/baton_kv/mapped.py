"""A connector for pools that this process can read as memory; backends add how a pool gets there.

Each `poll` copies blocks of one order up to `STEP_BYTES`; between two steps an order can be aborted. Blocks
with checksums are copied `CHECK_BYTES` at a time and checked while the processor's caches still hold them.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
import xxhash

from baton_core.blocks.kv_spec import KVSpec
from baton_kv.connector import (
    AbortResult,
    InvalidBlocksError,
    KVConnector,
    PullOrder,
    PullOutcome,
    VerifiesBy,
)
from baton_kv.description import Offer, decode_description, describe_pool
from baton_kv.layouts import Blocks, convert_blocks
from baton_kv.orders import RunningOrder, require_in_range, require_sound
from baton_kv.pool_bytes import as_pool, require_blocks
from baton_kv.row_copies import CopyRows, copy_rows

STEP_BYTES: Final = 4 << 20
"""After so many bytes a `poll` ends: about a millisecond, the latency of an abort."""
CHECK_BYTES: Final = 1 << 20


class MappedPool(Protocol):
    """A peer's pool, readable in place."""

    @property
    def blocks(self) -> Blocks:
        """Valid until `close`, whatever becomes of the holder."""

    def is_alive(self) -> bool:
        """Whether the holder still offers this pool."""

    def close(self) -> None:
        """Drop the memory. Views of `blocks` must be gone."""


@dataclass(slots=True)
class _Peer:
    epoch: int
    spec: KVSpec
    """Of the peer's pool: how its blocks are laid out."""
    is_converted: bool
    """Whether that is not how they lie here."""
    pool: MappedPool


class _Pull(RunningOrder):
    """An order in flight."""

    def __init__(self, order: PullOrder) -> None:
        super().__init__(order)
        num_copies = len(order.copies)
        self.remote = np.fromiter((copy.remote_block_id for copy in order.copies), np.int64, num_copies)
        self.local = np.fromiter((copy.local_block_id for copy in order.copies), np.int64, num_copies)
        self.num_copied = 0


class MappedConnector(KVConnector):
    """Common part of the backends that read a peer's memory directly."""

    def __init__(self, spec: KVSpec, epoch: int, address: str, copy: CopyRows = copy_rows) -> None:
        self._spec = spec
        self._epoch = epoch
        self._address = address
        self._blocks: Blocks | None = None
        self._peers: dict[str, _Peer] = {}
        self._pulls: dict[int, _Pull] = {}
        self._ended: list[PullOutcome] = []
        self._copy = copy
        self._is_checked = self.capabilities.verifies_by is VerifiesBy.CHECKSUM
        self._scratch: Blocks = np.empty((0, spec.block_bytes), np.uint8)
        self._woken = threading.Event()

    @abstractmethod
    def _place(self, num_bytes: int) -> torch.Tensor:
        """Zeroed memory `[num_bytes] uint8` that peers can be given."""

    @abstractmethod
    def _open(self, address: str, num_blocks: int) -> MappedPool:
        """Open a pool whose blocks are known to fit.

        Raises:
            HolderUnreachableError: see `connect`.
        """

    @property
    def blocks(self) -> Blocks:
        """The local pool as bytes."""
        if self._blocks is None:
            raise RuntimeError("the pool is not allocated")
        return self._blocks

    def allocate(self, num_blocks: int) -> torch.Tensor:
        if self._blocks is not None:
            raise RuntimeError("the pool is already allocated")
        require_blocks(num_blocks)
        memory = self._place(num_blocks * self._spec.block_bytes)
        self._blocks = memory.numpy().reshape(num_blocks, self._spec.block_bytes)
        return as_pool(memory, self._spec)

    @property
    def offer(self) -> Offer:
        """How a description names the local pool."""
        return Offer(self.capabilities.name, self._address)

    def describe(self) -> bytes:
        return describe_pool(self._spec, self._epoch, len(self.blocks), self.offer).encode()

    def connect(self, peer_id: str, description: bytes) -> None:
        self.disconnect(peer_id)
        described = decode_description(description, self._spec)
        pool = self._open(described.address(self.capabilities.name), described.num_blocks)
        spec = described.spec(self._spec)
        self._peers[peer_id] = _Peer(described.epoch, spec, spec != self._spec, pool)

    def disconnect(self, peer_id: str) -> None:
        peer = self._peers.pop(peer_id, None)
        if peer is None:
            return
        for pull in [pull for pull in self._pulls.values() if pull.order.source == peer_id]:
            self._end(pull, f"peer {peer_id!r} was disconnected")
        peer.pool.close()

    def seal(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        require_in_range("block_id", block_ids, len(self.blocks))
        if not self._is_checked:
            return (None,) * len(block_ids)
        return tuple(xxhash.xxh3_64_intdigest(self.blocks[block_id]) for block_id in block_ids)

    def pull(self, order: PullOrder) -> None:
        if order.pull_id in self._pulls:
            raise ValueError(f"pull_id is {order.pull_id}; allowed: one that is not in flight")
        try:
            self._require_sound(order)
        except InvalidBlocksError as error:
            self._ended.append(RunningOrder(order).end(str(error)))
        else:
            self._pulls[order.pull_id] = _Pull(order)

    def poll(self) -> list[PullOutcome]:
        for pull in self._pulls.values():
            self._advance(pull)
            break
        ended, self._ended = self._ended, []
        return ended

    @property
    def is_busy(self) -> bool:
        """Whether `poll` has something to do."""
        return bool(self._pulls or self._ended)

    def wait(self, timeout_s: float | None = None) -> None:
        self._woken.wait(0 if self.is_busy else timeout_s)
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def abort(self, pull_id: int) -> AbortResult:
        self._pulls.pop(pull_id, None)
        self._ended = [outcome for outcome in self._ended if outcome.pull_id != pull_id]
        return AbortResult.FENCED

    def close(self) -> None:
        self._pulls.clear()
        self._ended.clear()
        for peer_id in list(self._peers):
            self.disconnect(peer_id)

    def _end(self, pull: _Pull, error: str | None) -> None:
        del self._pulls[pull.order.pull_id]
        self._ended.append(pull.end(error))

    def _require_sound(self, order: PullOrder) -> None:
        peer = self._peers.get(order.source)
        if peer is None:
            raise InvalidBlocksError("source", order.source, f"one of {sorted(self._peers)}")
        require_sound(
            order,
            epoch=peer.epoch,
            num_remote_blocks=len(peer.pool.blocks),
            num_local_blocks=len(self.blocks),
        )

    def _advance(self, pull: _Pull) -> None:
        """Copy and check up to `STEP_BYTES` of an order."""
        peer = self._peers[pull.order.source]
        pull.start()
        if not peer.pool.is_alive():
            self._end(pull, f"holder {pull.order.source!r} is gone")
            return
        step_end = min(pull.num_copied + self._num_blocks(STEP_BYTES), len(pull.local))
        at_once = self._num_blocks(CHECK_BYTES) if self._is_checked else step_end
        while pull.num_copied < step_end:
            self._bring(pull, slice(pull.num_copied, min(pull.num_copied + at_once, step_end)), peer)
        if step_end == len(pull.local):
            self._end(pull, None)

    def _bring(self, pull: _Pull, part: slice, peer: _Peer) -> None:
        """Bring over a part of an order; what is checked is a copy, which the holder can no longer change."""
        local, num_blocks = pull.local[part], part.stop - part.start
        target, rows = self.blocks, local
        if peer.is_converted:
            target, rows = self._scratch_rows(2 * num_blocks), np.arange(num_blocks)
        is_read_soon = self._is_checked or peer.is_converted
        self._copy(peer.pool.blocks, pull.remote[part], target, rows, past_caches=not is_read_soon)
        if self._is_checked:
            pull.verify(pull.order.copies[part], [target[row] for row in rows.tolist()])
        if peer.is_converted:
            convert_blocks(target[:num_blocks], peer.spec, target[num_blocks:], self._spec)
            self._copy(target[num_blocks:], rows, self.blocks, local, past_caches=False)
        pull.num_copied = part.stop
        pull.num_bytes += num_blocks * self._spec.block_bytes

    def _num_blocks(self, num_bytes: int) -> int:
        """How many blocks are copied at once if it should be so many bytes."""
        return max(1, num_bytes // self._spec.block_bytes)

    def _scratch_rows(self, num_blocks: int) -> Blocks:
        """Memory for blocks beside the pool; valid until the next call."""
        if len(self._scratch) < num_blocks:
            self._scratch = np.empty((num_blocks, self._spec.block_bytes), np.uint8)
        return self._scratch[:num_blocks]
