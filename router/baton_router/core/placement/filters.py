"""The filters of placement: each leaves out workers that cannot take a request now.

A new filter is a class with `keep` and `reason`, and one line in `FILTERS`. A filter takes all workers at
once, so that a fleet of a thousand costs one loop for each filter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Protocol

from baton_router.core.placement.placement_snapshot import PlacementRequest, WorkerView

NO_WORKERS: Final[Mapping[str, str]] = MappingProxyType({})


class Filter(Protocol):
    """Decides which workers remain candidates for a request."""

    def keep(self, request: PlacementRequest, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        """Return the workers that may get the request, in order."""
        ...

    def reason(self, request: PlacementRequest, worker: WorkerView) -> str:
        """Return the reason for which `keep` leaves out this worker."""
        ...


@dataclass(frozen=True, slots=True)
class StatusFilter:
    """Leaves out workers in a status that takes no new requests."""

    has_status: Callable[[WorkerView], bool]
    text: str

    def keep(self, request: PlacementRequest, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        return list(filterfalse(self.has_status, workers))

    def reason(self, request: PlacementRequest, worker: WorkerView) -> str:
        return self.text


class LengthFilter:
    """Leaves out workers that cannot hold the sequence and some output."""

    def keep(self, request: PlacementRequest, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        num_tokens = request.num_needed_tokens
        return [one for one in workers if num_tokens <= one.max_model_len]

    def reason(self, request: PlacementRequest, worker: WorkerView) -> str:
        return f"holds {worker.max_model_len} tokens of a sequence; needed: {request.num_needed_tokens}"


class WeightsFilter:
    """Leaves out workers with another version of the weights."""

    def keep(self, request: PlacementRequest, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        weights = request.weights
        return [one for one in workers if one.weights == weights] if weights else workers

    def reason(self, request: PlacementRequest, worker: WorkerView) -> str:
        return f"has weights {worker.weights}; needed: {request.weights}"


class DataParallelFilter:
    """Leaves out workers of other data-parallel ranks, while that of the request can compute it by itself."""

    def keep(self, request: PlacementRequest, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        rank = request.data_parallel_rank
        if rank is None:
            return workers
        kept = [one for one in workers if one.data_parallel_rank == rank]
        is_whole = any(one.role.can_prefill for one in kept) and any(one.role.can_decode for one in kept)
        return kept if is_whole else workers

    def reason(self, request: PlacementRequest, worker: WorkerView) -> str:
        return f"has data_parallel_rank {worker.data_parallel_rank}; needed: {request.data_parallel_rank}"


@dataclass(frozen=True, slots=True)
class ExclusionFilter:
    """Leaves out workers that refused this request, or that have reached a limit of dispatch."""

    excluded: Mapping[str, str]
    """Workers by name, each with the reason."""

    def keep(self, request: PlacementRequest, workers: Sequence[WorkerView]) -> Sequence[WorkerView]:
        excluded = self.excluded
        return [one for one in workers if one.worker_id not in excluded] if excluded else workers

    def reason(self, request: PlacementRequest, worker: WorkerView) -> str:
        return self.excluded[worker.worker_id]


FILTERS: Final[tuple[Filter, ...]] = (
    StatusFilter(attrgetter("is_asleep"), "sleeps"),
    StatusFilter(attrgetter("is_draining"), "drains"),
    StatusFilter(attrgetter("is_faulty"), "is faulty"),
    StatusFilter(attrgetter("is_paused"), "is paused"),
    WeightsFilter(),
    LengthFilter(),
)
"""The filters of every routing policy, in the order in which they give reasons."""


DATA_PARALLEL: Final = DataParallelFilter()
"""The last filter, which looks at all that the others keep."""


def available(
    request: PlacementRequest, workers: Sequence[WorkerView], excluded: Mapping[str, str] = NO_WORKERS
) -> Sequence[WorkerView]:
    """Return the workers that all filters keep."""
    for one in (*FILTERS, ExclusionFilter(excluded), DATA_PARALLEL):
        workers = one.keep(request, workers)
    return workers


def reason_against(request: PlacementRequest, worker: WorkerView, excluded: Mapping[str, str]) -> str | None:
    """Return the reason of the first filter that leaves out a worker; None if all keep it."""
    filters = (*FILTERS, ExclusionFilter(excluded))
    found = next((one.reason(request, worker) for one in filters if not one.keep(request, [worker])), None)
    if found is None and request.data_parallel_rank not in (None, worker.data_parallel_rank):
        return DATA_PARALLEL.reason(request, worker)
    return found
