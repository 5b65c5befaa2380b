"""Groups of ranks with pools of their own, each rank on a thread of this process."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_core.ranks.transfer_plan import BlockPart, block_parts
from baton_core.worker.worker_events import (
    AbortPull,
    BlockPull,
    ChecksumsComputed,
    ComputeChecksums,
    Pull,
    PullDone,
)
from baton_kv.group_connector import Answer, GroupConnector
from baton_kv.rank_connector import RankConnector
from baton_kv.transfer_thread import TransferEffect, TransferEvent, TransferThread
from tests.builders import make_source
from tests.conformance.kv.pairs import Site

NUM_BLOCKS = 16
T = TypeVar("T")


class Group:
    """Ranks that hold `blocks`, `[NUM_BLOCKS, *spec.block_shape]`, in parts.

    Their pools are placed by the connectors, or if `registers` beforehand, as those of GPUs are.
    """

    def __init__(
        self, site: Site, spec: KVSpec, sizes: ParallelSizes, blocks: torch.Tensor, *, registers: bool = False
    ) -> None:
        self.parts = block_parts(spec, sizes)
        self._spec = spec
        self._answers: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[TransferEvent] = queue.SimpleQueue()
        places = [RankPlace(sizes=sizes, rank=rank) for rank in range(sizes.num_ranks)]
        make = partial(site.make, epoch=1)
        ranks = [RankConnector(spec, place, make) for place in places]
        self.leader = GroupConnector(spec, 1, sizes, ranks[sizes.leader], self._tell, self._answers)
        own = [part.spec(spec) for part in self.parts]
        self.pools = [
            _registered(rank, part) if registers else rank.allocate(NUM_BLOCKS)
            for rank, part in zip(ranks, own, strict=True)
        ]
        for part, pool in zip(self.parts, self.pools, strict=True):
            pool.copy_(own_part(blocks, part))
        self.threads = {
            rank: TransferThread(connector, partial(self._answer, rank))
            for rank, connector in enumerate(ranks)
            if rank != sizes.leader
        }
        self.thread = TransferThread(self.leader, self._deliver)
        for rank in self.threads:
            self._answer(rank, [ranks[rank].describe()])
        self.description = self.leader.describe()
        for thread in [*self.threads.values(), self.thread]:
            thread.start()

    def blocks(self) -> torch.Tensor:
        """Return what the ranks hold together; copies of a head are equal."""
        whole = torch.zeros((NUM_BLOCKS, *self._spec.block_shape), dtype=self.pools[0].dtype)
        for part, pool in zip(self.parts, self.pools, strict=True):
            _of(whole, part).copy_(pool)
        for part, pool in zip(self.parts, self.pools, strict=True):
            assert torch.equal(_of(whole, part), pool)
        return whole

    def pull(self, producer: Group, block_map: Mapping[int, int], *, name: str = "prefill-0") -> PullDone:
        """Pull blocks (local block to remote block), with checksums that the producer computes now."""
        return self.run(producer.prepare(block_map, name))

    def prepare(self, block_map: Mapping[int, int], name: str = "prefill-0") -> Pull:
        """Return a pull of blocks of this group."""
        remote = tuple(block_map.values())
        request = ComputeChecksums(request_id="1", indices=tuple(range(len(remote))), block_ids=remote)
        self.thread.execute(request)
        answer = self._next()
        checksums = answer.checksums if isinstance(answer, ChecksumsComputed) else (None,) * len(remote)
        blocks = tuple(
            BlockPull(remote_block_id=there, local_block_id=here, checksum=checksum)
            for (here, there), checksum in zip(block_map.items(), checksums, strict=True)
        )
        return Pull(pull_id=1, source=make_source(name, description=self.description), blocks=blocks)

    def run(self, effect: Pull | AbortPull) -> PullDone:
        """Execute an effect, and return the end of the pull that it is of."""
        self.thread.execute(effect)
        while not isinstance(event := self._next(), PullDone):
            pass
        return event

    def close(self) -> None:
        """End all ranks, the leader first."""
        for thread in [self.thread, *self.threads.values()]:
            thread.close(10.0)

    def _next(self) -> TransferEvent:
        return self._events.get(timeout=20.0)

    def _tell(self, rank: int, effect: TransferEffect) -> None:
        assert self.threads[rank].execute(effect)

    def _answer(self, rank: int, answers: Iterable[Answer]) -> None:
        for answer in answers:
            self._answers.put((rank, answer))
        self.leader.wake()

    def _deliver(self, events: list[TransferEvent]) -> None:
        for event in events:
            self._events.put(event)


def _registered(rank: RankConnector, own: KVSpec) -> torch.Tensor:
    pool = torch.zeros((NUM_BLOCKS, *own.block_shape), dtype=getattr(torch, own.dtype))
    rank.register(pool)
    return pool


def own_part(pool: torch.Tensor, part: BlockPart) -> torch.Tensor:
    """Return the part of a pool of all layers and heads that a rank has."""
    return _of(pool, part).contiguous()


def _of(pool: torch.Tensor, part: BlockPart) -> torch.Tensor:
    return pool[:, part.layers.start : part.layers.stop, :, part.heads.start : part.heads.stop]


def random_blocks(site: Site, spec: KVSpec) -> torch.Tensor:
    """Return `[NUM_BLOCKS, *spec.block_shape]` of random numbers."""
    shape = (NUM_BLOCKS, *spec.block_shape)
    return torch.randn(shape, generator=site.rng).to(getattr(torch, spec.dtype))


@contextmanager
def open_groups(
    site: Site, spec: KVSpec, *sizes: ParallelSizes, registers: bool = False
) -> Iterator[list[Group]]:
    """Open groups of these sizes, each with random blocks of its own."""
    groups: list[Group] = []
    try:
        for one in sizes:
            groups.append(Group(site, spec, one, random_blocks(site, spec), registers=registers))
        yield groups
    finally:
        for group in groups:
            group.close()
