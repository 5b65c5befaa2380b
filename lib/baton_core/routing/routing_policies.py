"""Policies that rank workers without predicting a cost: to compare with, and for who wants a simple rule.

Each ranks the workers of one half by itself; which workers may be taken and whether a request is split is
decided before, as for the policy `cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

from baton_core.routing.placement_snapshot import PlacementRequest, WorkerView
from baton_core.routing.rendezvous import draw, preference


class RoutingPolicy(StrEnum):
    COST = "cost"
    """The lowest predicted cost."""
    ROUND_ROBIN = "round-robin"
    """Each in turn, by name."""
    LEAST_LOADED = "least-loaded"
    """The fewest queued tokens to prefill, the fewest sequences to decode."""
    POWER_OF_TWO = "power-of-two"
    """The less loaded of two that the request's name draws."""
    CONSISTENT_HASH = "consistent-hash"
    """The one that the session prefers; without a session, the beginning of the prompt."""
    PREFIX = "prefix"
    """The longest cached prefix, then the least loaded."""


class Half(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    """Also of requests that are not split."""


_Load: TypeAlias = tuple[int, int, str]


def rank(
    policy: RoutingPolicy, request: PlacementRequest, half: Half, views: Sequence[WorkerView]
) -> list[WorkerView]:
    """The workers that the policy would take, the best first; not empty unless `views` is."""
    match policy:
        case RoutingPolicy.ROUND_ROBIN:
            views = sorted(views, key=lambda view: view.worker_id)
            start = request.turn % len(views) if views else 0
            return [*views[start:], *views[:start]]
        case RoutingPolicy.POWER_OF_TWO:
            return sorted(_two(request, half, views), key=lambda view: _load(half, view))
        case RoutingPolicy.CONSISTENT_HASH:
            key = f"{half} {request.affinity_key}"
            return sorted(views, key=lambda view: (-preference(key, view.worker_id), view.worker_id))
        case RoutingPolicy.PREFIX:
            return sorted(views, key=lambda view: (-view.num_cached_tokens, _load(half, view)))
        case RoutingPolicy.LEAST_LOADED | RoutingPolicy.COST:
            return sorted(views, key=lambda view: _load(half, view))


def _two(request: PlacementRequest, half: Half, views: Sequence[WorkerView]) -> list[WorkerView]:
    """Two different ones, where there are two."""
    left = sorted(views, key=lambda view: view.worker_id)
    return [
        left.pop(draw(f"{request.request_id} {half} {number}", len(left)))
        for number in range(min(2, len(left)))
    ]


def _load(half: Half, view: WorkerView) -> _Load:
    if half is Half.PREFILL:
        return (view.num_queued_tokens, view.num_sequences, view.worker_id)
    return (view.num_sequences, view.num_queued_tokens, view.worker_id)
