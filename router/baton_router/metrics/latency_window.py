"""Latencies of the requests that ended within the last minutes, as percentiles and against the SLO.

Plain state on the router's loop; the time is an argument. The window is cut into slices, which are forgotten
one by one, so memory depends neither on how many requests there are nor on how long the router runs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from baton_core.quantile_sketch import QuantileSketch
from baton_core.requests.request_context import Slo

SLICE_S: Final = 10.0
NUM_SLICES: Final = 30
WINDOW_S: Final = SLICE_S * NUM_SLICES
SLO_TARGET: Final = 0.99
"""Share of the requests that have to be within a limit for the SLO to be attained."""


class Latency(StrEnum):
    """A time that is taken of each request."""

    TTFT = "ttft"
    """Time from the call to the first token."""
    TPOT = "tpot"
    """Mean time per token after the first."""
    ITL = "itl"
    """Time between two tokens of a sequence."""
    E2E = "e2e"
    """Time from the call to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """One latency within the window; its percentiles are None while nothing is counted."""

    metric: Latency
    count: int
    """Requests; for `itl` tokens."""
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    slo_s: float | None = None
    """Limit of the router's SLO, if it has one for this latency."""
    share_within_slo: float | None = None
    """Share of the requests that took no longer; None without a limit, or without requests."""
    is_slo_attained: bool | None = None
    """The share is `SLO_TARGET` or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """The whole window at one time."""

    num_finished: int = 0
    num_failed: int = 0
    """Requests that were refused or failed; those whose client left are no failures."""
    percentiles: tuple[Percentiles, ...] = ()

    def p99_s(self, metric: Latency, min_count: int) -> float | None:
        """The 99th percentile of what was counted so often at least; else None."""
        found = (one for one in self.percentiles if one.metric is metric and one.count >= min_count)
        return next((one.p99_s for one in found), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyCounts:
    """The whole window of one process, as others add it to theirs."""

    num_finished: int
    num_failed: int
    num_within_slo: dict[Latency, int]
    buckets: dict[Latency, dict[int, int]]


class _Slice:
    """Latencies counted within one slice of time."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        """Slices since the clock's zero."""
        self.num_finished = 0
        self.num_failed = 0
        self.sketches = {metric: QuantileSketch() for metric in Latency}
        self.num_within_slo: Counter[Latency] = Counter()

    def merge(self, other: _Slice) -> None:
        self.num_finished += other.num_finished
        self.num_failed += other.num_failed
        self.num_within_slo.update(other.num_within_slo)
        for metric, sketch in self.sketches.items():
            sketch.merge(other.sketches[metric])

    def remove(self, other: _Slice) -> None:
        self.num_finished -= other.num_finished
        self.num_failed -= other.num_failed
        self.num_within_slo.subtract(other.num_within_slo)
        for metric, sketch in self.sketches.items():
            sketch.remove(other.sketches[metric])


class LatencyWindow:
    """Latencies of one router's requests within the last `WINDOW_S`.

    The sum of the slices that are over is kept, so a summary costs the same however many there are.
    """

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self._limits = {Latency.TTFT: slo.ttft_s, Latency.TPOT: slo.tpot_s}
        self._current = _Slice()
        self._past: deque[_Slice] = deque()
        """The slices before the current one that are in the window, the oldest first."""
        self._sum = _Slice()
        """Sum of the past slices."""

    def on_finished(self, now: float, latencies: dict[Latency, float]) -> None:
        """Count a request that finished, with the latencies that it has."""
        current = self._at(now)
        current.num_finished += 1
        for metric, value in latencies.items():
            current.sketches[metric].add(value)
            limit = self._limits.get(metric)
            current.num_within_slo[metric] += limit is not None and value <= limit

    def on_failed(self, now: float) -> None:
        """Count a request that was refused or failed."""
        self._at(now).num_failed += 1

    def on_tokens(self, now: float, gap_s: float, num_tokens: int) -> None:
        """Count tokens of a sequence, each of which came so long after the one before it."""
        self._at(now).sketches[Latency.ITL].add(gap_s, num_tokens)

    def quantile(self, now: float, metric: Latency, share: float, within_s: float) -> float | None:
        """A percentile of the last `within_s` seconds, in whole slices; None where there is none."""
        current = self._at(now)
        first = current.number - round(within_s / SLICE_S)
        whole = QuantileSketch()
        for one in (*self._past, current):
            if one.number > first:
                whole.merge(one.sketches[metric])
        return whole.quantile(share)

    def summary(self, now: float, others: Sequence[LatencyCounts] = ()) -> LatencySummary:
        """Return the summary of the window, with those of other processes."""
        whole = self._whole(now)
        for other in others:
            whole.merge(_slice_of(other))
        return LatencySummary(
            num_finished=whole.num_finished,
            num_failed=whole.num_failed,
            percentiles=tuple(self._percentiles(whole, metric) for metric in Latency),
        )

    def counts(self, now: float) -> LatencyCounts:
        """Return what is counted in the window."""
        whole = self._whole(now)
        return LatencyCounts(
            num_finished=whole.num_finished,
            num_failed=whole.num_failed,
            num_within_slo=dict(whole.num_within_slo),
            buckets={metric: sketch.counts for metric, sketch in whole.sketches.items()},
        )

    def _whole(self, now: float) -> _Slice:
        whole = _Slice()
        whole.merge(self._at(now))
        whole.merge(self._sum)
        return whole

    def _percentiles(self, whole: _Slice, metric: Latency) -> Percentiles:
        sketch, limit = whole.sketches[metric], self._limits.get(metric)
        share = whole.num_within_slo[metric] / sketch.count if limit is not None and sketch.count else None
        return Percentiles(
            metric=metric,
            count=sketch.count,
            p50_s=sketch.quantile(0.5),
            p90_s=sketch.quantile(0.9),
            p99_s=sketch.quantile(0.99),
            slo_s=limit,
            share_within_slo=share,
            is_slo_attained=None if share is None else share >= SLO_TARGET,
        )

    def _at(self, now: float) -> _Slice:
        """The current slice; what has left the window is forgotten."""
        number = int(now // SLICE_S)
        if number > self._current.number:
            self._past.append(self._current)
            self._sum.merge(self._current)
            self._current = _Slice(number)
            while self._past and self._past[0].number <= number - NUM_SLICES:
                self._sum.remove(self._past.popleft())
        return self._current


def _slice_of(counts: LatencyCounts) -> _Slice:
    whole = _Slice()
    whole.num_finished, whole.num_failed = counts.num_finished, counts.num_failed
    whole.num_within_slo.update(counts.num_within_slo)
    whole.sketches |= {metric: QuantileSketch(buckets) for metric, buckets in counts.buckets.items()}
    return whole
