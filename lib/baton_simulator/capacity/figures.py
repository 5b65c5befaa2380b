"""From what became of requests to the figures of a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from baton_core.requests.request_context import Slo
from baton_simulator.capacity.fate import Fate
from baton_simulator.capacity.worker_mix import ROLES

PERCENTILES: Final = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Of whole answers, in seconds; 0 of none."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency:
        p50_s, p90_s, p99_s = (percentile(values, percent) for percent in PERCENTILES)
        mean_s = statistics.fmean(values) if values else 0.0
        return cls(mean_s=mean_s, p50_s=p50_s, p90_s=p90_s, p99_s=p99_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run, or of a part of it."""

    num_requests: int
    num_failed: int
    """Without a whole answer."""
    duration_s: float
    """From the first request to the last end."""
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
    """By the letter of a role: share of the time in which its workers were in a step."""
    errors: Mapping[str, int]
    """How often each one was the end."""


def measure(fates: Sequence[Fate], busy: Mapping[str, float], slo: Slo) -> Figures:
    """The figures of these requests, of which there is at least one; each has ended."""
    whole = [fate for fate in fates if fate.is_whole]
    first_s = min(fate.ask.at_s for fate in fates)
    duration_s = max(fate.ask.at_s + fate.e2e_s for fate in fates) - first_s
    num_good = sum(fate.meets(slo) for fate in fates)
    num_prompt_tokens = sum(fate.ask.num_prompt_tokens for fate in whole)
    return Figures(
        num_requests=len(fates),
        num_failed=len(fates) - len(whole),
        duration_s=duration_s,
        goodput_per_s=num_good / duration_s,
        attainment=num_good / len(fates),
        tokens_per_s=sum(fate.ask.num_tokens for fate in whole) / duration_s,
        ttft=Latency.of([fate.ttft_s for fate in whole]),
        tpot=Latency.of([fate.tpot_s for fate in whole if fate.tpot_s is not None]),
        e2e=Latency.of([fate.e2e_s for fate in whole]),
        hit_rate=sum(fate.num_cached_tokens for fate in whole) / max(1, num_prompt_tokens),
        split_share=sum(fate.is_split for fate in whole) / max(1, len(whole)),
        busy=busy,
        errors=_errors(fates),
    )


def busy_by_role(busy_s: Mapping[str, float], duration_s: float) -> dict[str, float]:
    """Mean share of the time, by the letter of a role; `busy_s` is by worker."""
    shares = {letter: [s for name, s in busy_s.items() if name[0] == letter] for letter in ROLES}
    return {letter: statistics.fmean(each) / duration_s for letter, each in shares.items() if each}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all do not exceed; 0 of none."""
    if not values:
        return 0.0
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(0, rank - 1)]


def _errors(fates: Sequence[Fate]) -> dict[str, int]:
    """By what they say before the first name or number."""
    counts: dict[str, int] = {}
    for fate in fates:
        if fate.error:
            counts[fate.error] = counts.get(fate.error, 0) + 1
    return counts
