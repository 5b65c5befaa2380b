"""The figures that servers are compared by, from the answers of a run. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from baton_bench.answers import Answer, LoadRun

LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, per token after it, between pieces of an answer, and to its end."""
MARKED_PERCENTS: Final = (50.0, 90.0, 99.0)
"""Percentiles that pictures mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Statistics of some values; all are 0 if there are none."""

    mean: float
    median: float
    std: float
    """Standard deviation of the values as a whole population."""
    percentiles: Mapping[float, float]

    @classmethod
    def of(cls, values: Sequence[float], percents: Sequence[float]) -> Spread:
        ordered = sorted(values)
        return cls(
            mean=statistics.fmean(ordered) if ordered else 0.0,
            median=percentile(ordered, 50.0),
            std=statistics.pstdev(ordered) if ordered else 0.0,
            percentiles={percent: percentile(ordered, percent) for percent in percents},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one run."""

    completed: int
    failed: int
    errors: Mapping[str, int]
    """Counts of the errors that ended requests, the most frequent first."""
    duration_s: float
    total_input_tokens: int
    """Prompt tokens of completed requests; so are all fields that follow."""
    total_output_tokens: int
    request_throughput: float
    """Per second, like the next three."""
    request_goodput: float | None
    """Requests that met every limit; None where there are no limits."""
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    """Tokens of the second with the most."""
    max_concurrent_requests: int
    num_uncounted: int
    """Answers whose server does not say how many tokens they have."""
    latencies: Mapping[str, Spread]
    """Latencies in ms, by the names of `LATENCIES`."""
    send_lag: Spread
    """Delay of requests in the load generator, in ms."""
    slot_wait: Spread
    """Delay of requests by the limit of requests at a time, in ms."""
    cpu_share: float
    """The share of a core that the load generator took."""


def measure(run: LoadRun, percents: Sequence[float], goodput_ms: Mapping[str, float]) -> Figures:
    """The figures of a run; `goodput_ms` are limits by the names of `LATENCIES`, without `itl`."""
    whole = [answer for answer in run.answers if not answer.error]
    duration_s = max(run.duration_s, 1e-9)
    output_tokens = sum(answer.num_tokens for answer in whole)
    total_tokens = output_tokens + sum(answer.num_prompt_tokens for answer in whole)
    good = sum(is_good(answer, goodput_ms) for answer in whole)
    own_percents = sorted({*percents, 99.0})
    return Figures(
        completed=len(whole),
        failed=len(run.answers) - len(whole),
        errors=dict(Counter(answer.error for answer in run.answers if answer.error).most_common()),
        duration_s=run.duration_s,
        total_input_tokens=total_tokens - output_tokens,
        total_output_tokens=output_tokens,
        request_throughput=len(whole) / duration_s,
        request_goodput=good / duration_s if goodput_ms else None,
        output_throughput=output_tokens / duration_s,
        total_token_throughput=total_tokens / duration_s,
        max_output_tokens_per_s=_busiest_second(whole, run.start_s),
        max_concurrent_requests=_most_at_a_time(whole),
        num_uncounted=sum(answer.reported_tokens is None for answer in whole),
        latencies={name: Spread.of(values_ms, percents) for name, values_ms in latencies_ms(whole).items()},
        send_lag=Spread.of([answer.lag_s * 1e3 for answer in run.answers], own_percents),
        slot_wait=Spread.of([answer.slot_wait_s * 1e3 for answer in run.answers], own_percents),
        cpu_share=run.cpu_share,
    )


def latencies_ms(answers: Iterable[Answer]) -> dict[str, list[float]]:
    """Every value of each latency; of the time per token only where an answer has two."""
    values: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for answer in answers:
        values["ttft"].append(answer.ttft_s * 1e3)
        values["e2el"].append(answer.e2el_s * 1e3)
        values["itl"] += [itl_s * 1e3 for itl_s in answer.itls_s]
        if (tpot_s := answer.tpot_s) is not None:
            values["tpot"].append(tpot_s * 1e3)
    return values


def is_good(answer: Answer, limits_ms: Mapping[str, float]) -> bool:
    """True if a whole answer meets every limit; a single token has no time per token and meets that one."""
    taken_s = {"ttft": answer.ttft_s, "tpot": answer.tpot_s or 0.0, "e2el": answer.e2el_s}
    return all(taken_s[name] * 1e3 <= limit_ms for name, limit_ms in limits_ms.items())


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, interpolated between the nearest ranks; 0 if there are none."""
    if not ordered:
        return 0.0
    rank = percent / 100 * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def _busiest_second(answers: Iterable[Answer], start_s: float) -> float:
    seconds: defaultdict[int, float] = defaultdict(float)
    for answer in answers:
        share = answer.num_tokens / max(len(answer.times_s), 1)
        for time_s in answer.times_s:
            seconds[math.floor(time_s - start_s)] += share
    return max(seconds.values(), default=0.0)


def _most_at_a_time(answers: Iterable[Answer]) -> int:
    """Return the most requests at a time; an end counts before a beginning at the same moment."""
    changes = [change for one in answers for change in ((one.sent_s, 1), (one.ended_s, -1))]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
