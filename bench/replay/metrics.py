"""Figures of a table from the answers of runs: per run, then over the repeats, then in pairs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from baton_simulator.capacity.figures import percentile
from baton_simulator.capacity.tables import table
from bench.replay.loads import Answer

PERCENTILE = 99.0
Columns: TypeAlias = Mapping[str, tuple[str, float, str]]
"""Columns of a table: heading to field of `RunMetrics`, factor and format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetrics:
    """One run; times in seconds."""

    mean_ttft_s: float
    p99_ttft_s: float
    mean_gap_s: float
    """Between the first token and the second."""
    p99_gap_s: float
    mean_itl_s: float
    """Between the tokens from the second one on."""
    p99_itl_s: float
    mean_e2e_s: float
    p99_e2e_s: float
    hit_rate: float
    """Share of the prompt tokens that were cached where the prompt was computed."""
    split_share: float
    """The share of the requests that were split."""
    transferred_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over the repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median=statistics.median(values), low=min(values), high=max(values))


def measure(answers: Sequence[Answer], num_prompt_tokens: int) -> RunMetrics:
    """The figures of one run; answers with an error count in no time.

    Raises:
        ValueError: not one request was answered.
    """
    whole = [answer for answer in answers if not answer.error]
    if not whole:
        raise ValueError("no request was answered")
    ttfts = [answer.ttft_s for answer in whole]
    gaps = [answer.gap_s for answer in whole if answer.gap_s is not None]
    intervals = [interval for answer in whole for interval in answer.intervals_s]
    e2es = [answer.e2e_s for answer in whole]
    return RunMetrics(
        mean_ttft_s=_mean(ttfts),
        p99_ttft_s=percentile(ttfts, PERCENTILE),
        mean_gap_s=_mean(gaps),
        p99_gap_s=percentile(gaps, PERCENTILE),
        mean_itl_s=_mean(intervals),
        p99_itl_s=percentile(intervals, PERCENTILE),
        mean_e2e_s=_mean(e2es),
        p99_e2e_s=percentile(e2es, PERCENTILE),
        hit_rate=sum(answer.cached_tokens for answer in whole) / num_prompt_tokens,
        split_share=sum(answer.is_split for answer in whole) / len(whole),
        transferred_bytes=float(sum(answer.transferred_bytes for answer in whole)),
    )


def spread(runs: Sequence[RunMetrics], name: str) -> Spread:
    return Spread.of([getattr(run, name) for run in runs])


def paired_change(runs: Sequence[RunMetrics], base: Sequence[RunMetrics], name: str) -> Spread | None:
    """Return a figure's relative change from `base`'s run of the same repeat; None where that is 0."""
    pairs = [(getattr(run, name), getattr(other, name)) for run, other in zip(runs, base, strict=True)]
    if not all(other for _, other in pairs):
        return None
    return Spread.of([value / other - 1 for value, other in pairs])


def policy_table(runs: Mapping[str, Sequence[RunMetrics]], columns: Columns) -> str:
    """A row for each setting: median and lowest to highest of each figure."""
    rows = [
        [setting, *(shown(spread(of, name), factor, form) for name, factor, form in columns.values())]
        for setting, of in runs.items()
    ]
    return table(["", *columns], rows)


def pairs_table(runs: Mapping[str, Sequence[RunMetrics]], base: str, columns: Columns) -> str:
    """Return a table of each figure's change from that of `base` in the same repeat, in percent."""
    rows = []
    for setting, of in runs.items():
        if setting != base:
            changes = [paired_change(of, runs[base], name) for name, _, _ in columns.values()]
            rows.append([setting, *(shown(change, 100, "+.0f") if change else "-" for change in changes)])
    return table([f"against {base}, %", *columns], rows)


def shown(value: Spread, factor: float, form: str) -> str:
    low, high = (format(one * factor, form) for one in (value.low, value.high))
    return f"{value.median * factor:{form}} ({low} to {high})"


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
