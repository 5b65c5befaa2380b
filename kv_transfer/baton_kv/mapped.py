"""A connector for pools that this process can read as memory; backends add how a pool gets there.

A pull is cut into runs of adjacent blocks. Each `poll` copies runs of one order up to `STEP_BYTES` and
checks them while they are still in the processor's cache; between two steps an order can be aborted.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
import xxhash

from baton_core.blocks.kv_spec import KVSpec
from baton_kv.block_runs import merge_runs
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

STEP_BYTES: Final = 4 << 20
"""After so many bytes a `poll` ends: about a millisecond, the latency of an abort. One run is no larger
either, unless a single block is."""


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
    """An order in flight, cut into runs."""

    def __init__(self, order: PullOrder, max_blocks: int) -> None:
        super().__init__(order)
        self.runs: Iterator[tuple[slice, slice]] = iter(merge_runs(order.copies, max_blocks))
        self.num_copied = 0


class MappedConnector(KVConnector):
    """Common part of the backends that read a peer's memory directly."""

    def __init__(self, spec: KVSpec, epoch: int, address: str) -> None:
        self._spec = spec
        self._epoch = epoch
        self._address = address
        self._blocks: Blocks | None = None
        self._peers: dict[str, _Peer] = {}
        self._pulls: dict[int, _Pull] = {}
        self._ended: list[PullOutcome] = []
        self._scratch: Blocks | None = None
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
        if self.capabilities.verifies_by is VerifiesBy.CONFIRMATION:
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
            self._pulls[order.pull_id] = _Pull(order, max(1, STEP_BYTES // self._spec.block_bytes))

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
        step_end = pull.num_bytes + STEP_BYTES
        block_bytes = self._spec.block_bytes
        for remote, local in pull.runs:
            self._copy(pull, remote, local, peer)
            pull.num_bytes += (local.stop - local.start) * block_bytes
            if pull.num_bytes >= step_end:
                return
        self._end(pull, None)

    def _copy(self, pull: _Pull, remote: slice, local: slice, peer: _Peer) -> None:
        """Bring over one run; what is checked is a copy, which the holder can no longer change."""
        num_blocks = local.stop - local.start
        copied = self._rows(num_blocks) if peer.is_converted else self.blocks[local]
        copied[:] = peer.pool.blocks[remote]
        if self.capabilities.verifies_by is VerifiesBy.CHECKSUM:
            pull.verify(pull.order.copies[pull.num_copied : pull.num_copied + num_blocks], copied)
        if peer.is_converted:
            convert_blocks(copied, peer.spec, self.blocks[local], self._spec)
        pull.num_copied += num_blocks

    def _rows(self, num_blocks: int) -> Blocks:
        """Memory for blocks in a layout that is not the local one; valid until the next call."""
        if self._scratch is None:
            max_blocks = max(1, STEP_BYTES // self._spec.block_bytes)
            self._scratch = np.empty((max_blocks, self._spec.block_bytes), np.uint8)
        return self._scratch[:num_blocks]
