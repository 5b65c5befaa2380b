"""Ranks as threads of one process, which exchange tensors through a list: the rules of models apart from
processes and shared memory."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import TypeVar

import torch
from torch import Tensor

from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_core.worker.step_plan import StepPlan
from baton_engine.ranks.ranks import Ranks, nobody
from baton_engine.steps.runner import ModelRunner
from baton_kernels.interface.collectives import Collectives

T = TypeVar("T")
_WITHIN_S = 60.0


class _Board:
    """The tensors that the ranks of a group have put down."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=_WITHIN_S)
        self.given: list[Tensor | None] = [None] * size
        self.queues: defaultdict[tuple[int, int], Queue[Tensor]] = defaultdict(Queue)


class ThreadCollectives(Collectives):
    """One rank's end of a board."""

    def __init__(self, board: _Board, rank: int) -> None:
        self._board = board
        self.rank = rank
        self.size = len(board.given)

    def all_reduce(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x, dtype=torch.float32)
        for part in self.all_gather(x):
            total += part.float()
        return total.to(x.dtype)

    def all_gather(self, x: Tensor) -> Tensor:
        self._board.given[self.rank] = x.clone()
        self._board.barrier.wait()
        parts = [part for part in self._board.given if part is not None]
        self._board.barrier.wait()
        return torch.stack(parts)

    def gather(self, x: Tensor, to: int) -> Tensor | None:
        parts = self.all_gather(x)
        return parts if self.rank == to else None

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return self.all_gather(x)[source]

    def send(self, x: Tensor, to: int) -> None:
        self._board.queues[self.rank, to].put(x.clone())

    def receive(self, x: Tensor, source: int) -> Tensor:
        return x.copy_(self._board.queues[source, self.rank].get(timeout=_WITHIN_S))

    def barrier(self) -> None:
        self._board.barrier.wait()

    def close(self) -> None: ...


def thread_group(size: int) -> list[ThreadCollectives]:
    """Return the ends of a group, each for a thread of its own."""
    board = _Board(size)
    return [ThreadCollectives(board, rank) for rank in range(size)]


def run_ranks(
    sizes: ParallelSizes, make: Callable[[Ranks], ModelRunner], lead: Callable[[ModelRunner], T]
) -> T:
    """Make the runner of each rank on a thread of its own; `lead` uses the leader's, the others follow."""
    steps: list[Queue[StepPlan | None]] = [Queue() for _ in range(sizes.num_ranks)]

    def of_rank(ranks: Ranks) -> T | None:
        runner = make(ranks)
        if not ranks.place.is_leader:
            while (plan := steps[ranks.place.rank].get(timeout=_WITHIN_S)) is not None:
                runner.execute(plan)
            return None
        try:
            return lead(runner)
        finally:
            for queue in steps:
                queue.put(None)

    def announce(plan: StepPlan) -> None:
        for queue in steps:
            queue.put(plan)

    with ThreadPoolExecutor(sizes.num_ranks) as threads:
        results = list(threads.map(of_rank, _make_ranks(sizes, announce)))
    led = results[sizes.leader]
    assert led is not None
    return led


def on_each_rank(sizes: ParallelSizes, compute: Callable[[Ranks], T]) -> T:
    """Compute the same on each rank's thread; return what the leader has."""
    with ThreadPoolExecutor(sizes.num_ranks) as threads:
        return list(threads.map(compute, _make_ranks(sizes, nobody)))[sizes.leader]


def _make_ranks(sizes: ParallelSizes, announce: Callable[[StepPlan], None]) -> list[Ranks]:
    places = [RankPlace(sizes=sizes, rank=rank) for rank in range(sizes.num_ranks)]
    stages = [thread_group(sizes.tensor) for _ in range(sizes.pipeline)]
    lines = [thread_group(sizes.pipeline) for _ in range(sizes.tensor)]
    whole = thread_group(sizes.num_ranks)
    return [
        Ranks(
            place=place,
            tensor=stages[place.stage][place.tensor_rank],
            pipeline=lines[place.tensor_rank][place.stage],
            whole=whole[place.rank],
            announce=announce if place.is_leader else nobody,
        )
        for place in places
    ]
