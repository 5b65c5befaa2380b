"""A connector for pools that this process can read as memory; backends add how a pool gets there.

Each `poll` copies blocks of one pull up to `STEP_BYTES`; between two steps a pull can be aborted. Blocks
with checksums are copied `CHECK_BYTES` at a time and checked while the processor's caches still hold them.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np
import torch
import xxhash

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.worker_events import Pull, PullAborted, PullDone
from baton_kv.connector import VerifiesBy
from baton_kv.description import Offer
from baton_kv.layouts import Blocks, convert_blocks
from baton_kv.part_reads import PartRead
from baton_kv.pool_bytes import as_pool, require_blocks
from baton_kv.pool_connector import PoolConnector
from baton_kv.pool_memory import Lend
from baton_kv.row_copies import CopyRows, copy_rows
from baton_kv.running_pull import RunningPull, require_in_range

STEP_BYTES: Final = 4 << 20
"""After so many bytes a `poll` ends: about a millisecond, the latency of an abort."""
CHECK_BYTES: Final = 1 << 20


class MappedPool(Protocol):
    """A peer's pool, readable in place."""

    @property
    def blocks(self) -> Blocks:
        """Valid until `close`, whatever becomes of the producer."""

    def is_alive(self) -> bool:
        """True if the producer still offers this pool."""

    def close(self) -> None:
        """Drop the memory. Views of `blocks` must be gone."""


@dataclass(slots=True)
class _Peer:
    epoch: int
    num_blocks: int
    spec: KVSpec
    """Spec of the peer's pool: the layout of its blocks."""
    is_converted: bool
    """True if that is not how they lie here."""
    part: PartRead | None
    """The part of each block that is read; None is all of it, which is verified."""
    pool: MappedPool


class _MappedPull(RunningPull):
    """A pull in flight."""

    def __init__(self, pull: Pull) -> None:
        super().__init__(pull)
        blocks = pull.blocks
        self.remote = np.fromiter((block.remote_block_id for block in blocks), np.int64, len(blocks))
        self.local = np.fromiter((block.local_block_id for block in blocks), np.int64, len(blocks))
        self.num_copied = 0


class MappedConnector(PoolConnector[_Peer]):
    """Common part of the backends that read a peer's memory directly."""

    def __init__(self, spec: KVSpec, epoch: int, address: str, copy: CopyRows = copy_rows) -> None:
        super().__init__(spec, epoch)
        self._address = address
        self._blocks: Blocks | None = None
        self._pulls: dict[int, _MappedPull] = {}
        self._copy = copy
        self._is_checked = self.capabilities.verifies_by is VerifiesBy.CHECKSUM
        self._scratch: Blocks = np.empty((0, spec.block_bytes), np.uint8)
        self._woken = threading.Event()

    @abstractmethod
    def _place(self, num_bytes: int, lend: Lend | None) -> torch.Tensor:
        """Zeroed memory `[num_bytes] uint8` that peers can be given; `lend` is as in `allocate`."""

    @abstractmethod
    def _open(self, address: str, num_blocks: int, block_bytes: int) -> MappedPool:
        """Open a pool whose blocks are known to fit.

        Raises:
            ProducerUnreachableError: see `connect`.
        """

    @property
    def blocks(self) -> Blocks:
        """The local pool as bytes."""
        if self._blocks is None:
            raise RuntimeError("the pool is not allocated")
        return self._blocks

    def allocate(self, num_blocks: int, lend: Lend | None = None) -> torch.Tensor:
        if self._blocks is not None:
            raise RuntimeError("the pool is already allocated")
        require_blocks(num_blocks)
        memory = self._place(num_blocks * self._spec.block_bytes, lend)
        self._blocks = memory.numpy().reshape(num_blocks, self._spec.block_bytes)
        return as_pool(memory, self._spec)

    @property
    def offer(self) -> Offer:
        return Offer(self.capabilities.name, self._address)

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    def connect(self, peer_id: str, description: bytes, part: PartRead | None = None) -> None:
        self.disconnect(peer_id)
        described = self._decode(description, part)
        num_blocks, block_bytes = described.num_blocks, (part.spec if part else self._spec).block_bytes
        pool = self._open(described.address(self.capabilities.name), num_blocks, block_bytes)
        spec = described.spec(self._spec)
        self._peers[peer_id] = _Peer(described.epoch, num_blocks, spec, spec != self._spec, part, pool)

    def disconnect(self, peer_id: str) -> None:
        peer = self._peers.pop(peer_id, None)
        if peer is None:
            return
        for pull in [one for one in self._pulls.values() if one.request.source.worker_id == peer_id]:
            self._end(pull, f"peer {peer_id!r} was disconnected")
        peer.pool.close()

    def gone_peers(self) -> list[str]:
        return [peer_id for peer_id, peer in self._peers.items() if not peer.pool.is_alive()]

    def compute_checksums(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        require_in_range("block_id", block_ids, len(self.blocks))
        if not self._is_checked:
            return (None,) * len(block_ids)
        return tuple(xxhash.xxh3_64_intdigest(self.blocks[block_id]) for block_id in block_ids)

    def _begin(self, peer: _Peer, pull: Pull) -> None:
        self._pulls[pull.pull_id] = _MappedPull(pull)

    def poll(self) -> list[PullDone]:
        for pull in self._pulls.values():
            self._advance(pull)
            break
        return self._take_ended()

    @property
    def is_busy(self) -> bool:
        """True if `poll` has something to do."""
        return bool(self._pulls or self._ended)

    def wait(self, timeout_s: float | None = None) -> None:
        self._woken.wait(0 if self.is_busy else timeout_s)
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def abort(self, pull_id: int) -> PullAborted:
        self._pulls.pop(pull_id, None)
        self._sources.pop(pull_id, None)
        self._drop_ended(pull_id)
        return PullAborted(pull_id=pull_id, is_fenced=True)

    def close(self) -> None:
        self._pulls.clear()
        self._sources.clear()
        self._ended.clear()
        for peer_id in list(self._peers):
            self.disconnect(peer_id)

    def _end(self, pull: _MappedPull, error: str = "") -> None:
        del self._pulls[pull.request.pull_id]
        self._on_end(pull.end(error))

    def _advance(self, pull: _MappedPull) -> None:
        """Copy and check up to `STEP_BYTES` of a pull."""
        peer_id = pull.request.source.worker_id
        peer = self._peers[peer_id]
        pull.start()
        if not peer.pool.is_alive():
            self._end(pull, f"producer {peer_id!r} is gone")
            return
        step_end = min(pull.num_copied + self._num_blocks(STEP_BYTES), len(pull.local))
        copy = self._copy_blocks if peer.part is None else partial(self._copy_ranges, peer.part)
        at_once = self._num_blocks(CHECK_BYTES) if self._is_checked else step_end
        while pull.num_copied < step_end:
            copy(pull, slice(pull.num_copied, min(pull.num_copied + at_once, step_end)), peer)
        if step_end == len(pull.local):
            self._end(pull)

    def _copy_ranges(self, read: PartRead, pull: _MappedPull, part: slice, peer: _Peer) -> None:
        """Copy ranges of the blocks of a part of a pull."""
        local, remote = pull.local[part], pull.remote[part]
        if read.is_whole(self._spec.block_bytes):
            self._copy(peer.pool.blocks, remote, self.blocks, local, past_caches=False)
        else:
            for (start, end), target in zip(read.sources, read.targets, strict=True):
                self.blocks[local, target] = peer.pool.blocks[remote, start:end]
        pull.num_copied = part.stop
        pull.num_bytes += len(local) * read.num_bytes

    def _copy_blocks(self, pull: _MappedPull, part: slice, peer: _Peer) -> None:
        """Copy a part of a pull; the bytes that are checked are a copy that the producer cannot change."""
        local, num_blocks = pull.local[part], part.stop - part.start
        target, rows = self.blocks, local
        if peer.is_converted:
            target, rows = self._scratch_rows(2 * num_blocks), np.arange(num_blocks)
        is_read_soon = self._is_checked or peer.is_converted
        self._copy(peer.pool.blocks, pull.remote[part], target, rows, past_caches=not is_read_soon)
        if self._is_checked:
            pull.verify(pull.request.blocks[part], [target[row] for row in rows.tolist()])
        if peer.is_converted:
            convert_blocks(target[:num_blocks], peer.spec, target[num_blocks:], self._spec)
            self._copy(target[num_blocks:], rows, self.blocks, local, past_caches=False)
        pull.num_copied = part.stop
        pull.num_bytes += num_blocks * self._spec.block_bytes

    def _num_blocks(self, num_bytes: int) -> int:
        """Number of blocks to copy at once for so many bytes."""
        return max(1, num_bytes // self._spec.block_bytes)

    def _scratch_rows(self, num_blocks: int) -> Blocks:
        """Memory for blocks beside the pool; valid until the next call."""
        if len(self._scratch) < num_blocks:
            self._scratch = np.empty((num_blocks, self._spec.block_bytes), np.uint8)
        return self._scratch[:num_blocks]
