"""Rates assumed of workers, beside those of others of their kind.

A worker that looks slow gets few requests, so nothing corrects what it is taken for. So the rate of a worker
that has learned nothing lately, while others of its kind have, drifts towards theirs until it is tried again.
Where nobody learns anything, nothing drifts. Rates that are close to each other count as equal.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Final, NamedTuple

from baton_core.sessions.worker_info import Role, WorkerRates

HALF_LIFE_S: Final = 5.0
"""In so many seconds half of the distance to the others is gone, as a ratio. So a worker that looks a hundred
times too slow is tried again within some twenty seconds; one that is slow indeed gets, no more often than
that, its part of the requests until its next heartbeat."""
FRESH_S: Final = 2.0
"""A rate stays as it is until it is so much older than the newest one: some heartbeats."""
NOISE: Final = 1.25
"""Rates of one kind that differ from their median by no more than this ratio are taken to be the median:
equal workers measure as much, and the one that looks best would get all requests of an idle fleet."""
_NEVER: Final = float("-inf")


class LearnedAt(NamedTuple):
    """Times at which a worker last learned each rate, by the router's clock."""

    prefill_s: float = _NEVER
    decode_s: float = _NEVER
    pull_s: float = _NEVER

    def after(self, now: float, before: WorkerRates, rates: WorkerRates) -> LearnedAt:
        """The times after a report at `now`."""
        prefill = rates.num_prefill_steps != before.num_prefill_steps
        decode = rates.num_decode_steps != before.num_decode_steps
        pull = rates.num_pulls != before.num_pulls
        return LearnedAt(
            now if prefill or rates.prefill_tokens_per_s != before.prefill_tokens_per_s else self.prefill_s,
            now if decode or rates.decode_step_s != before.decode_step_s else self.decode_s,
            now if pull or rates.pull_bytes_per_s != before.pull_bytes_per_s else self.pull_s,
        )


NEVER_LEARNED: Final = LearnedAt()


class Report(NamedTuple):
    """Rates as a worker reported them."""

    worker_id: str
    role: Role
    rates: WorkerRates
    learned_at: LearnedAt


class _Known(NamedTuple):
    learned_s: float
    worker_id: str
    value: float


def aged_rates(reports: Iterable[Report]) -> dict[str, WorkerRates]:
    """Rates assumed of each worker; each role is a kind of its own, and 0 stays 0."""
    kinds: defaultdict[Role, list[Report]] = defaultdict(list)
    for report in reports:
        kinds[report.role].append(report)
    return {name: rates for kind in kinds.values() for name, rates in _of_kind(kind).items()}


def _of_kind(reports: Sequence[Report]) -> dict[str, WorkerRates]:
    if len(reports) == 1:
        return {reports[0].worker_id: reports[0].rates}
    columns = (
        [_Known(one.learned_at.prefill_s, one.worker_id, one.rates.prefill_tokens_per_s) for one in reports],
        [_Known(one.learned_at.decode_s, one.worker_id, one.rates.decode_step_s) for one in reports],
        [_Known(one.learned_at.pull_s, one.worker_id, one.rates.pull_bytes_per_s) for one in reports],
    )
    prefill, decode, pull = (_alike(_drifted(column)) for column in columns)
    return {
        one.worker_id: WorkerRates(
            prefill_tokens_per_s=prefill.get(one.worker_id, 0.0),
            decode_step_s=decode.get(one.worker_id, 0.0),
            pull_bytes_per_s=pull.get(one.worker_id, 0.0),
        )
        for one in reports
    }


def _drifted(values: Iterable[_Known]) -> dict[str, float]:
    """Known values by worker, from the newest on: one that is not fresh moves towards the newer ones."""
    known = sorted((one for one in values if one.value > 0), key=lambda one: (-one.learned_s, one.worker_id))
    drifted: dict[str, float] = {}
    newer: list[float] = []
    for one in known:
        age_s, value = known[0].learned_s - one.learned_s - FRESH_S, one.value
        if age_s > 0:
            typical = median(newer)
            value = typical * (value / typical) ** (0.5 ** (age_s / HALF_LIFE_S))
        drifted[one.worker_id] = value
        insort(newer, value)
    return drifted


def _alike(values: Mapping[str, float]) -> dict[str, float]:
    """The values, those near their median replaced by it."""
    if not values:
        return {}
    typical = median(sorted(values.values()))
    least, most = typical / NOISE, typical * NOISE
    return {name: typical if least <= value <= most else value for name, value in values.items()}


def median(values: Sequence[float]) -> float:
    """Return the middle of values over 0 in order, of which there is one at least.

    Of two middles it is the geometric mean, which is as far from the one as from the other, as a ratio.
    """
    half = len(values) // 2
    return values[half] if len(values) % 2 else sqrt(values[half - 1] * values[half])
