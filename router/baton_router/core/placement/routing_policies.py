"""Routing policies that rank workers by simple scores, without a predicted cost.

Each policy ranks the workers of one half by itself: scores rate them, a pick orders them. The filters are
those of the policy `cost`; a request is split where the first decode worker lacks enough of its prompt. A
new policy is a member of `RoutingPolicy` and one line in `RANKINGS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from baton_router.core.placement.placement_snapshot import PlacementRequest, WorkerView
from baton_router.core.placement.rendezvous import preference, pseudo_random


class RoutingPolicy(StrEnum):
    COST = "cost"
    """The lowest predicted cost."""
    ROUND_ROBIN = "round-robin"
    """Each in turn, by name."""
    LEAST_LOADED = "least-loaded"
    """The fewest queued tokens to prefill, the fewest sequences to decode."""
    POWER_OF_TWO = "power-of-two"
    """The less loaded of two that a hash of the request's name selects."""
    CONSISTENT_HASH = "consistent-hash"
    """The preference of the session; without a session, of the beginning of the prompt."""
    PREFIX = "prefix"
    """The longest cached prefix, then the least loaded."""


class Half(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    """The decode half, and a request that is not split."""


class Score(Protocol):
    """Rates a worker for one half of a request."""

    def cost(self, request: PlacementRequest, half: Half, worker: WorkerView) -> tuple[float, ...]:
        """Return the cost of the worker; the lowest is the best."""
        ...


class LoadScore:
    """Queued tokens, then sequences, to prefill; to decode the other way round."""

    def cost(self, request: PlacementRequest, half: Half, worker: WorkerView) -> tuple[float, ...]:
        load = (worker.num_queued_tokens, worker.num_sequences)
        return load if half is Half.PREFILL else load[::-1]


class PrefixScore:
    """The length of the cached prefix: the longest is the best."""

    def cost(self, request: PlacementRequest, half: Half, worker: WorkerView) -> tuple[float, ...]:
        return (-worker.num_cached_tokens,)


class AffinityScore:
    """The preference of a rendezvous hash of the session, or of the beginning of the prompt."""

    def cost(self, request: PlacementRequest, half: Half, worker: WorkerView) -> tuple[float, ...]:
        return (-preference(f"{half} {request.affinity_key}", worker.worker_id),)


class Pick(Protocol):
    """Selects and orders workers."""

    def order(
        self, request: PlacementRequest, half: Half, workers: list[WorkerView], scores: Sequence[Score]
    ) -> list[WorkerView]:
        """Return workers, the best first; `workers` come in the order of their names."""
        ...


class PickLowest:
    """Orders by cost; of equal ones the first name is the best."""

    def order(
        self, request: PlacementRequest, half: Half, workers: list[WorkerView], scores: Sequence[Score]
    ) -> list[WorkerView]:
        return sorted(workers, key=lambda one: [score.cost(request, half, one) for score in scores])


class PickNext:
    """Rotates the workers by one with each request that was placed, or split for the prefill half."""

    def order(
        self, request: PlacementRequest, half: Half, workers: list[WorkerView], scores: Sequence[Score]
    ) -> list[WorkerView]:
        turn = request.split_turn if half is Half.PREFILL else request.turn
        start = turn % len(workers) if workers else 0
        return [*workers[start:], *workers[:start]]


class PickOfTwo(PickLowest):
    """Selects two different workers by a hash of the request's name, and orders them by cost."""

    def order(
        self, request: PlacementRequest, half: Half, workers: list[WorkerView], scores: Sequence[Score]
    ) -> list[WorkerView]:
        two = [
            workers.pop(pseudo_random(f"{request.request_id} {half} {number}", len(workers)))
            for number in range(min(2, len(workers)))
        ]
        two.sort(key=lambda one: one.worker_id)
        return super().order(request, half, two, scores)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The parts of a policy: its scores, the first of which decides first, and its pick."""

    pick: Pick
    scores: tuple[Score, ...] = ()


RANKINGS: Final[Mapping[RoutingPolicy, Ranking]] = {
    RoutingPolicy.ROUND_ROBIN: Ranking(PickNext()),
    RoutingPolicy.LEAST_LOADED: Ranking(PickLowest(), (LoadScore(),)),
    RoutingPolicy.POWER_OF_TWO: Ranking(PickOfTwo(), (LoadScore(),)),
    RoutingPolicy.CONSISTENT_HASH: Ranking(PickLowest(), (AffinityScore(),)),
    RoutingPolicy.PREFIX: Ranking(PickLowest(), (PrefixScore(), LoadScore())),
}
"""Rankings of the policies other than `cost`, which predicts the cost of each candidate."""


def rank(
    policy: RoutingPolicy, request: PlacementRequest, half: Half, views: Sequence[WorkerView]
) -> list[WorkerView]:
    """Return the workers that the policy would take, the best first; not empty unless `views` is."""
    ranking = RANKINGS[policy]
    by_name = sorted(views, key=lambda one: one.worker_id)
    return ranking.pick.order(request, half, by_name, ranking.scores)
