"""The same measurement at several rates or concurrencies, and the table of its results. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from baton_bench.arrivals import Pace
from baton_bench.figures import Figures
from baton_bench.serving import ServePlan
from baton_simulator.capacity.tables import table

SEED_STEP: Final = 1000
"""Between the seeds of points: a sampled prompt of one point is cached for none of the next."""
_COLUMNS: Final = ("TTFT", "TPOT", "ITL")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """The settings of one point of a sweep."""

    rate: float | None
    """Requests per second; None: a trace's own."""
    max_concurrency: int | None

    @property
    def rate_name(self) -> str:
        return "trace" if self.rate is None else f"{self.rate:g}"

    def __str__(self) -> str:
        concurrency = f", {self.max_concurrency} at a time" if self.max_concurrency else ""
        return f"{self.rate_name}/s{concurrency}"


def sweep_points(rates: Sequence[float | None], concurrencies: Sequence[int]) -> list[SweepPoint]:
    """Every rate with every concurrency."""
    return [
        SweepPoint(rate=rate, max_concurrency=concurrency)
        for rate in rates
        for concurrency in concurrencies or (None,)
    ]


def plan_of(plan: ServePlan, point: SweepPoint, number: int, burstiness: float) -> ServePlan:
    """The plan at a point, the `number`-th from 0."""
    pace = None if point.rate is None else Pace(rate=point.rate, burstiness=burstiness)
    limits = plan.limits
    if point.max_concurrency is not None:
        limits = replace(limits, max_concurrency=point.max_concurrency)
    return replace(plan, pace=pace, limits=limits, seed=plan.seed + SEED_STEP * number)


def sweep_table(points: Sequence[tuple[str, Figures]]) -> str:
    """A row for each point; one where every request failed has no latencies."""
    headers = ["", "failed", "requests/s", "goodput/s", "output tokens/s"]
    headers += [f"{name} {part}, ms" for name in _COLUMNS for part in ("p50", "p99")]
    return table([*headers, "lag p99, ms"], [_row(name, figures) for name, figures in points])


def _row(name: str, figures: Figures) -> list[str]:
    goodput = "" if figures.request_goodput is None else f"{figures.request_goodput:.2f}"
    cells = [name, str(figures.failed), f"{figures.request_throughput:.2f}", goodput]
    cells.append(f"{figures.output_throughput:.1f}")
    for column in _COLUMNS:
        spread = figures.latencies[column.lower()]
        percentiles = (spread.percentiles[percent] for percent in (50.0, 99.0))
        cells += [f"{value:.1f}" if figures.completed else "-" for value in percentiles]
    return [*cells, f"{figures.send_lag.percentiles[99.0]:.1f}"]
