"""The connector of a group of ranks with pools of their own, at its leader.

Each rank moves its part of every block. The leader tells them what to pull, waits for all of them, and
compares the sums of what they have with the producer's: a block is right if every part of it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

import msgspec

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_core.ranks.transfer_plan import copy_number
from baton_core.worker.worker_events import (
    AbortPull,
    ChecksumsComputed,
    ChecksumsFailed,
    ComputeChecksums,
    Pull,
    PullAborted,
    PullDone,
)
from baton_kv.connector import KVConnector, VerifiesBy
from baton_kv.description import GroupDescription
from baton_kv.head_sums import add_up
from baton_kv.joined_pull import JoinedPull
from baton_kv.part_reads import PartRead
from baton_kv.rank_connector import RankConnector
from baton_kv.transfer_thread import TransferEffect, TransferEvent

if TYPE_CHECKING:
    import torch

    from baton_kv.pool_memory import Lend

ANSWER_WITHIN_S: Final = 8.0
"""Time for other ranks to describe their pools, and to add up blocks."""

SendEffect = Callable[[int, TransferEffect], None]
"""Hands an effect to the `TransferThread` of another rank."""
Answer = TransferEvent | bytes
"""A report of that thread, or the description of the rank's pool."""


class GroupConnector(KVConnector):
    """Moves whole blocks of `spec` with all ranks of a group; `own` is the leader's.

    What other ranks answer, with the number of each, comes by `answers`; then `wake` is called.
    """

    def __init__(
        self,
        spec: KVSpec,
        epoch: int,
        sizes: ParallelSizes,
        own: RankConnector,
        send: SendEffect,
        answers: SimpleQueue[tuple[int, Answer]],
    ) -> None:
        self._spec = spec
        self._epoch = epoch
        self._sizes = sizes
        self._own = own
        self._send = send
        self._others = [rank for rank in range(sizes.num_ranks) if rank != sizes.leader]
        self._copies: dict[int, list[int]] = {}
        """Ranks that hold a block once together, by the number of their copy."""
        for rank in range(sizes.num_ranks):
            copy = copy_number(spec, RankPlace(sizes=sizes, rank=rank))
            self._copies.setdefault(copy, []).append(rank)
        self._descriptions: dict[int, bytes] = {}
        self._events = answers
        self._pulls: dict[int, JoinedPull] = {}
        self._answers: dict[int, TransferEvent] = {}
        """Answers to the last request for checksums, by rank."""
        self._num_requests = 0
        self._ended: list[PullDone] = []
        # Parts of blocks are read as they lie: who has them in another order has no transport in common.
        apart = f"pools of ranks apart, K {spec.k_axes}, V {spec.v_axes}"
        name = "+".join(f"{one}, {apart}" for one in own.capabilities.name.split("+"))
        is_safe = own.capabilities.has_safe_abort and not self._others
        self.capabilities = replace(own.capabilities, name=name, has_safe_abort=is_safe)

    # --- the group's pools ---

    def allocate(self, num_blocks: int, lend: Lend | None = None) -> torch.Tensor:
        """Place the leader's pool; the others place their own."""
        return self._own.allocate(num_blocks, lend)

    def register(self, pool: torch.Tensor) -> None:
        self._own.register(pool)

    def describe(self) -> bytes:
        """Describe the pools of all ranks, which have placed them.

        Raises:
            TimeoutError: not all have, in time.
        """
        self._await(lambda: len(self._descriptions) == len(self._others))
        self._descriptions[self._sizes.leader] = self._own.describe()
        return msgspec.msgpack.encode(
            GroupDescription(
                layout=self._spec.layout,
                k_axes=self._spec.k_axes,
                v_axes=self._spec.v_axes,
                epoch=self._epoch,
                num_blocks=self._own.num_blocks,
                offers=(),
                tensor=self._sizes.tensor,
                pipeline=self._sizes.pipeline,
                stages=self._sizes.stages,
                members=tuple(self._descriptions[rank] for rank in range(self._sizes.num_ranks)),
            )
        )

    def compute_checksums(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        if self.capabilities.verifies_by is VerifiesBy.CONFIRMATION:
            return self._own.compute_checksums(block_ids)
        asked = [rank for rank in self._copies[0] if rank != self._sizes.leader]
        self._num_requests += 1
        self._answers.clear()
        name = str(self._num_requests)
        for rank in asked:
            self._send(rank, ComputeChecksums(request_id=name, indices=(), block_ids=tuple(block_ids)))
        own = self._own.compute_checksums(block_ids)
        self._await(lambda: len(self._answers) == len(asked))
        shares = [[share for share in own if share is not None]]
        for rank, answer in self._answers.items():
            if not isinstance(answer, ChecksumsComputed):
                raise RuntimeError(f"rank {rank}: {answer}")
            shares.append(list(answer.checksums))
        return tuple(add_up(shares))

    # --- pools of others ---

    def connect(self, peer_id: str, description: bytes, part: PartRead | None = None) -> None:
        """Open the leader's part; the others open theirs with the first pull."""
        self._own.connect(peer_id, description, part)

    def pull(self, pull: Pull) -> None:
        if pull.pull_id in self._pulls:
            raise ValueError(f"pull_id is {pull.pull_id}; allowed: one that is not in flight")
        self._pulls[pull.pull_id] = JoinedPull(pull, range(self._sizes.num_ranks))
        self._own.pull(pull)
        for rank in self._others:
            self._send(rank, pull)

    def poll(self) -> list[PullDone]:
        for done in self._own.poll():
            self._end_part(self._sizes.leader, done.pull_id, done)
        self._take_events()
        ended, self._ended = self._ended, []
        return ended

    def wait(self, timeout_s: float | None = None) -> None:
        self._own.wait(0.0 if self._ended or not self._events.empty() else timeout_s)

    def wake(self) -> None:
        self._own.wake()

    def abort(self, pull_id: int) -> PullAborted:
        self._ended = [done for done in self._ended if done.pull_id != pull_id]
        pull = self._pulls.get(pull_id)
        if pull is None:
            return PullAborted(pull_id=pull_id, is_fenced=True)
        pull.is_aborted = True
        if self._own.abort(pull_id).is_fenced:
            pull.end_part(self._sizes.leader, None)
        if not pull.left:
            del self._pulls[pull_id]
            return PullAborted(pull_id=pull_id, is_fenced=True)
        for rank in pull.left - {self._sizes.leader}:
            self._send(rank, AbortPull(pull_id=pull_id))
        return PullAborted(pull_id=pull_id, is_fenced=False)

    def transport_of(self, peer_id: str) -> str:
        return self._own.transport_of(peer_id)

    def gone_peers(self) -> list[str]:
        return self._own.gone_peers()

    def disconnect(self, peer_id: str) -> None:
        """Drop the leader's part; the threads of the others see for themselves."""
        self._own.disconnect(peer_id)

    def close(self) -> None:
        self._pulls.clear()
        self._own.close()

    # --- parts ---

    def _end_part(self, rank: int, pull_id: int, done: PullDone | None) -> None:
        pull = self._pulls.get(pull_id)
        if pull is not None and pull.end_part(rank, done):
            del self._pulls[pull_id]
            self._ended.append(self._verified(pull))

    def _verified(self, pull: JoinedPull) -> PullDone:
        """Return the end of a pull that has ended at all ranks."""
        if pull.error or self.capabilities.verifies_by is VerifiesBy.CONFIRMATION:
            return pull.end()
        blocks = pull.request.blocks
        found = [add_up(pull.ended[rank].sums for rank in ranks) for ranks in self._copies.values()]
        failed = [
            block.local_block_id
            for block, *sums in zip(blocks, *found, strict=True)
            if any(one != block.checksum for one in sums)
        ]
        if not failed:
            return pull.end()
        return pull.end(f"checksum of {len(failed)} of {len(blocks)} blocks does not match", failed)

    def _take_events(self, timeout_s: float = 0.0) -> None:
        """Take what has come from other ranks; wait for the first of it."""
        try:
            while True:
                self._take(*self._events.get(timeout=timeout_s) if timeout_s else self._events.get_nowait())
                timeout_s = 0.0
        except Empty:
            return

    def _take(self, rank: int, event: Answer) -> None:
        match event:
            case bytes():
                self._descriptions[rank] = event
            case PullDone(pull_id=pull_id):
                self._end_part(rank, pull_id, event)
            case PullAborted(pull_id=pull_id, is_fenced=True):
                self._end_part(rank, pull_id, None)
            case ChecksumsComputed(request=request) | ChecksumsFailed(request=request):
                if request.request_id == str(self._num_requests):
                    self._answers[rank] = event

    def _await(self, is_here: Callable[[], bool]) -> None:
        """Take events of other ranks until it is so.

        Raises:
            TimeoutError: it is not in time.
        """
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while not is_here():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"other ranks have not answered within {ANSWER_WITHIN_S:g} s")
            self._take_events(left)
