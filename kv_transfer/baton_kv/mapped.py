"""A connector for pools that this process can read as memory; backends add how a pool gets there.

A pull is cut into runs of adjacent blocks. Each `poll` copies runs of one order up to `STEP_BYTES` and
checks them while they are still in the processor's cache; between two steps an order can be aborted.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from baton_core.errors import InvalidConfigError
from baton_core.kv_spec import KVSpec
from baton_kv.block_runs import BlockRun, merge_runs
from baton_kv.connector import (
    AbortResult,
    HolderUnreachableError,
    InvalidBlocksError,
    KVConnector,
    PullOrder,
    PullOutcome,
    VerifiesBy,
)
from baton_kv.description import PoolDescription, decode_description

STEP_BYTES: Final = 4 << 20
"""After so many bytes a `poll` ends: about a millisecond, the latency of an abort. One run is no larger
either, unless a single block is."""

Blocks = npt.NDArray[np.uint8]
"""A pool as bytes: `[num_blocks, block_bytes]`, contiguous."""


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
    pool: MappedPool


@dataclass(slots=True)
class _Pull:
    """An order in flight."""

    order: PullOrder
    runs: Iterator[BlockRun]
    started: float | None = None
    num_bytes: int = 0
    failed: list[int] = field(default_factory=list)

    def end(self, error: str | None) -> PullOutcome:
        """With `error`, every block of the order failed; without, those whose checksum was wrong."""
        failed = self.failed
        if error is not None:
            failed = [copy.local_block_id for copy in self.order.copies]
        elif failed:
            error = f"checksum of {len(failed)} of {len(self.order.copies)} blocks does not match"
        return PullOutcome(
            pull_id=self.order.pull_id,
            failed=tuple(failed),
            error=error,
            num_bytes=self.num_bytes,
            seconds=0.0 if self.started is None else time.monotonic() - self.started,
        )


class MappedConnector(KVConnector):
    """Common part of the backends that read a peer's memory directly."""

    def __init__(self, spec: KVSpec, epoch: int) -> None:
        self._spec = spec
        self._epoch = epoch
        self._blocks: Blocks | None = None
        self._peers: dict[str, _Peer] = {}
        self._pulls: dict[int, _Pull] = {}
        self._ended: list[PullOutcome] = []

    @abstractmethod
    def _place(self, num_bytes: int) -> torch.Tensor:
        """Zeroed memory `[num_bytes] uint8` that peers can be given."""

    @abstractmethod
    def _where(self) -> tuple[str, str]:
        """Realm and address of the local pool."""

    @abstractmethod
    def _open(self, description: PoolDescription) -> MappedPool:
        """Open a pool whose layout is known to fit.

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
        if num_blocks < 1:
            raise InvalidConfigError(f"num_blocks is {num_blocks}; allowed: 1 or more")
        memory = self._place(num_blocks * self._spec.block_bytes)
        self._blocks = memory.numpy().reshape(num_blocks, self._spec.block_bytes)
        dtype: torch.dtype = getattr(torch, self._spec.dtype)
        return memory.view(dtype).view(num_blocks, *self._spec.block_shape)

    def describe(self) -> bytes:
        realm, address = self._where()
        description = PoolDescription(
            transport=self.capabilities.name,
            layout=self._spec.layout,
            epoch=self._epoch,
            num_blocks=len(self.blocks),
            realm=realm,
            address=address,
        )
        return description.encode()

    def connect(self, peer_id: str, description: bytes) -> None:
        self.disconnect(peer_id)
        described = decode_description(
            description, transport=self.capabilities.name, layout=self._spec.layout
        )
        realm, _ = self._where()
        if described.realm != realm:
            raise HolderUnreachableError("realm", described.realm, f"{realm!r}, the one of this worker")
        self._peers[peer_id] = _Peer(described.epoch, self._open(described))

    def disconnect(self, peer_id: str) -> None:
        peer = self._peers.pop(peer_id, None)
        if peer is None:
            return
        for pull in [pull for pull in self._pulls.values() if pull.order.source == peer_id]:
            self._end(pull, f"peer {peer_id!r} was disconnected")
        peer.pool.close()

    def seal(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        _require_in_range("block_id", block_ids, len(self.blocks))
        if self.capabilities.verifies_by is VerifiesBy.CONFIRMATION:
            return (None,) * len(block_ids)
        return tuple(xxhash.xxh3_64_intdigest(self.blocks[block_id]) for block_id in block_ids)

    def pull(self, order: PullOrder) -> None:
        if order.pull_id in self._pulls:
            raise ValueError(f"pull_id is {order.pull_id}; allowed: one that is not in flight")
        max_blocks = max(1, STEP_BYTES // self._spec.block_bytes)
        pull = _Pull(order, merge_runs(order.copies, max_blocks))
        try:
            self._require_sound(order)
        except InvalidBlocksError as error:
            self._ended.append(pull.end(str(error)))
        else:
            self._pulls[order.pull_id] = pull

    def poll(self) -> list[PullOutcome]:
        for pull in self._pulls.values():
            self._advance(pull)
            break
        ended, self._ended = self._ended, []
        return ended

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
        if order.epoch != peer.epoch:
            raise InvalidBlocksError("epoch", order.epoch, f"{peer.epoch}, the one that is connected")
        _require_in_range("remote_block_id", [c.remote_block_id for c in order.copies], len(peer.pool.blocks))
        local_ids = [copy.local_block_id for copy in order.copies]
        _require_in_range("local_block_id", local_ids, len(self.blocks))
        if len(set(local_ids)) != len(local_ids):
            raise InvalidBlocksError("local_block_id", local_ids, "each block once")

    def _advance(self, pull: _Pull) -> None:
        """Copy and check up to `STEP_BYTES` of an order."""
        peer = self._peers[pull.order.source]
        if pull.started is None:
            pull.started = time.monotonic()
        if not peer.pool.is_alive():
            self._end(pull, f"holder {pull.order.source!r} is gone")
            return
        step_end = pull.num_bytes + STEP_BYTES
        for run in pull.runs:
            self.blocks[run.local] = peer.pool.blocks[run.remote]
            pull.num_bytes += len(run.copies) * self._spec.block_bytes
            pull.failed.extend(self._mismatches(run))
            if pull.num_bytes >= step_end:
                return
        self._end(pull, None)

    def _mismatches(self, run: BlockRun) -> list[int]:
        """Local ids of the copied blocks that are not what the holder sealed; a block never sealed is one."""
        if self.capabilities.verifies_by is VerifiesBy.CONFIRMATION:
            return []
        return [
            copy.local_block_id
            for copy in run.copies
            if xxhash.xxh3_64_intdigest(self.blocks[copy.local_block_id]) != copy.checksum
        ]


def _require_in_range(name: str, block_ids: Sequence[int], num_blocks: int) -> None:
    for block_id in block_ids:
        if not 0 <= block_id < num_blocks:
            raise InvalidBlocksError(name, block_id, f"0 to {num_blocks - 1}")
