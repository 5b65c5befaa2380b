"""From what became of requests to the figures of a table."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from baton_core.requests.request_context import Slo
from baton_simulator.capacity.request_result import RequestResult
from baton_simulator.capacity.worker_mix import ROLES

PERCENTILES: Final = (50.0, 90.0, 99.0)
_NUMBERED: Final = re.compile(r"\w*\d[\w.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latency of whole answers that have it, in seconds; 0 where there are none."""

    num_answers: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency:
        p50_s, p90_s, p99_s = (percentile(values, percent) for percent in PERCENTILES)
        mean_s = statistics.fmean(values) if values else 0.0
        return cls(num_answers=len(values), mean_s=mean_s, p50_s=p50_s, p90_s=p90_s, p99_s=p99_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a run, or of a part of it."""

    num_requests: int
    num_failed: int
    """Without a whole answer."""
    duration_s: float
    """Time from the first request to the last end."""
    goodput_per_s: float
    """Requests that met the SLO."""
    attainment: float
    """Share of the requests that met it."""
    tokens_per_s: float
    """Generated, of whole answers."""
    ttft: Latency
    tpot: Latency
    e2e: Latency
    hit_rate: float
    """Share of the prompt tokens that were cached where the prompt was computed."""
    split_share: float
    busy: Mapping[str, float]
    """Share of time in steps of the workers of a role, by its letter."""
    errors: Mapping[str, int]
    """Number of requests that ended with each kind of error, by an example, the most frequent kind first."""


def measure(results: Sequence[RequestResult], busy: Mapping[str, float], slo: Slo) -> Figures:
    """The figures of these requests, of which there is at least one; each has ended."""
    whole = [result for result in results if result.is_whole]
    first_s = min(result.ask.at_s for result in results)
    duration_s = max(result.ask.at_s + result.e2e_s for result in results) - first_s
    num_good = sum(result.meets(slo) for result in results)
    num_prompt_tokens = sum(result.ask.num_prompt_tokens for result in whole)
    return Figures(
        num_requests=len(results),
        num_failed=len(results) - len(whole),
        duration_s=duration_s,
        goodput_per_s=_share(num_good, duration_s),
        attainment=num_good / len(results),
        tokens_per_s=_share(sum(result.ask.num_tokens for result in whole), duration_s),
        ttft=Latency.of([result.ttft_s for result in whole]),
        tpot=Latency.of([result.tpot_s for result in whole if result.tpot_s is not None]),
        e2e=Latency.of([result.e2e_s for result in whole]),
        hit_rate=_share(sum(result.num_cached_tokens for result in whole), num_prompt_tokens),
        split_share=_share(sum(result.is_split for result in whole), len(whole)),
        busy=busy,
        errors=_errors(results),
    )


def busy_by_role(busy_s: Mapping[str, float], duration_s: float) -> dict[str, float]:
    """Mean share of the time, by the letter of a role; `busy_s` is by worker."""
    shares = {letter: [s for name, s in busy_s.items() if name[0] == letter] for letter in ROLES}
    return {letter: _share(statistics.fmean(each), duration_s) for letter, each in shares.items() if each}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all do not exceed; 0 of none."""
    if not values:
        return 0.0
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(0, rank - 1)]


def _share(amount: float, of: float) -> float:
    """0 of nothing: requests that are refused at once take no time."""
    return amount / of if of else 0.0


def _errors(results: Sequence[RequestResult]) -> dict[str, int]:
    """Count errors by their first example; such that differ in numbers and numbered names are alike."""
    examples: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for result in results:
        if result.error:
            counts[examples.setdefault(_NUMBERED.sub("", result.error), result.error)] += 1
    return dict(counts.most_common())
