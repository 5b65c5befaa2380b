"""A run's figures as the tables and the JSON that readers of the field's load generators know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from baton_bench.answers import LoadRun
from baton_bench.figures import Figures, Spread

MAX_SEND_LAG_MS: Final = 10.0
"""Limit of the 99th percentile; above it the schedule was not kept."""
MAX_CPU_SHARE: Final = 0.9
"""Share of a core; above it the load generator may be the bottleneck."""
_WIDTH: Final = 50
TITLES: Final = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def percentile_name(percent: float) -> str:
    """`p99`, `p99.9`."""
    return f"p{percent:g}"


def table(figures: Figures, shown: Sequence[str], settings: Mapping[str, object]) -> str:
    """The latencies in `shown` below the rates; `settings` are lines of their own."""
    lines = [" Serving Benchmark Result ".center(_WIDTH, "="), *_rates(figures, settings)]
    for name in shown:
        label = name.upper()
        lines += [TITLES[name].center(_WIDTH, "-"), *_spread_lines(figures.latencies[name], label)]
    lines.append("Load Generator".center(_WIDTH, "-"))
    lines.append(_line("P99 send lag (ms):", _p99(figures.send_lag)))
    if figures.slot_wait.mean:
        lines.append(_line("P99 wait for a slot (ms):", _p99(figures.slot_wait)))
    lines.append(_line("CPU share of a core:", figures.cpu_share))
    return "\n".join([*lines, "=" * _WIDTH, ""])


def warnings(figures: Figures, *, is_paced: bool) -> Iterator[str]:
    """Yield reasons to doubt the figures. Without a pace no request can leave late."""
    if is_paced and _p99(figures.send_lag) > MAX_SEND_LAG_MS:
        yield (
            f"requests left the load generator up to {_p99(figures.send_lag):.1f} ms late (p99): it does not "
            "keep the schedule; lower the rate, or give it a core of its own"
        )
    if figures.cpu_share > MAX_CPU_SHARE:
        yield f"the load generator took {figures.cpu_share:.0%} of a core: it may be what was measured"
    if figures.num_uncounted:
        yield (
            f"{figures.num_uncounted} answers came without a usage: their tokens are counted by the pieces "
            "they came in"
        )


def failures(figures: Figures) -> Iterator[str]:
    """Why requests failed, the three most frequent reasons."""
    if figures.failed and not figures.completed:
        yield f"all {figures.failed} requests failed: there is nothing to measure"
    for error, count in list(figures.errors.items())[:3]:
        yield f"{count} of {figures.completed + figures.failed} requests failed: {error}"


def summary(figures: Figures) -> str:
    """Return one line on how much was served, and how much of it well."""
    parts = [f"{figures.completed} completed, {figures.failed} failed"]
    parts.append(
        f"{figures.request_throughput:.2f} requests/s, {figures.output_throughput:.1f} output tokens/s"
    )
    if (goodput := figures.request_goodput) is not None:
        share = goodput / figures.request_throughput if figures.completed else 0.0
        parts.append(f"goodput {goodput:.2f} requests/s ({share:.1%} met every SLO)")
    return "; ".join(parts)


def as_json(figures: Figures) -> dict[str, Any]:
    """Under the names of vLLM's result files; what those lack has names of its own."""
    result: dict[str, Any] = {
        "duration": figures.duration_s,
        "completed": figures.completed,
        "failed": figures.failed,
        "total_input_tokens": figures.total_input_tokens,
        "total_output_tokens": figures.total_output_tokens,
        "request_throughput": figures.request_throughput,
        "request_goodput": figures.request_goodput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_token_throughput,
        "max_output_tokens_per_s": figures.max_output_tokens_per_s,
        "max_concurrent_requests": figures.max_concurrent_requests,
    }
    for name, spread in (*figures.latencies.items(), ("send_lag", figures.send_lag)):
        result |= _spread_json(spread, name)
    result |= _spread_json(figures.slot_wait, "slot_wait")
    return {**result, "generator_cpu_share": figures.cpu_share, "error_counts": dict(figures.errors)}


def detailed(run: LoadRun) -> dict[str, Any]:
    """One entry for each request, failed ones too."""
    answers = run.answers
    return {
        "input_lens": [answer.num_prompt_tokens for answer in answers],
        "output_lens": [answer.num_tokens for answer in answers],
        "start_times": [answer.sent_s - run.start_s for answer in answers],
        "ttfts": [0.0 if answer.error else answer.ttft_s for answer in answers],
        "itls": [answer.itls_s for answer in answers],
        "generated_texts": ["".join(answer.texts) for answer in answers],
        "errors": [answer.error for answer in answers],
    }


def file_name(label: str, rate: str, max_concurrency: int | None, model: str, now: datetime) -> str:
    """`openai-4qps-concurrency8-model-20260131-120000.json`."""
    concurrency = f"-concurrency{max_concurrency}" if max_concurrency else ""
    return f"{label}-{rate}qps{concurrency}-{model.rsplit('/', 1)[-1]}-{now:%Y%m%d-%H%M%S}.json"


def _rates(figures: Figures, settings: Mapping[str, object]) -> Iterator[str]:
    yield _line("Successful requests:", figures.completed)
    yield _line("Failed requests:", figures.failed)
    for name, value in settings.items():
        yield _line(f"{name}:", value)
    yield _line("Benchmark duration (s):", figures.duration_s)
    yield _line("Total input tokens:", figures.total_input_tokens)
    yield _line("Total generated tokens:", figures.total_output_tokens)
    yield _line("Request throughput (req/s):", figures.request_throughput)
    if figures.request_goodput is not None:
        yield _line("Request goodput (req/s):", figures.request_goodput)
    yield _line("Output token throughput (tok/s):", figures.output_throughput)
    yield _line("Peak output token throughput (tok/s):", figures.max_output_tokens_per_s)
    yield _line("Peak concurrent requests:", figures.max_concurrent_requests)
    yield _line("Total token throughput (tok/s):", figures.total_token_throughput)


def _spread_lines(spread: Spread, label: str) -> Iterator[str]:
    yield _line(f"Mean {label} (ms):", spread.mean)
    yield _line(f"Median {label} (ms):", spread.median)
    yield _line(f"Std {label} (ms):", spread.std)
    for percent, value in spread.percentiles.items():
        if percent == 50.0:  # the median
            continue
        yield _line(f"{percentile_name(percent).upper()} {label} (ms):", value)


def _spread_json(spread: Spread, name: str) -> dict[str, float]:
    parts = {"mean": spread.mean, "median": spread.median, "std": spread.std}
    parts |= {percentile_name(percent): value for percent, value in spread.percentiles.items()}
    return {f"{part}_{name}_ms": value for part, value in parts.items()}


def _p99(spread: Spread) -> float:
    return spread.percentiles[99.0]


def _line(name: str, value: object) -> str:
    return f"{name:<40} {f'{value:.2f}' if isinstance(value, float) else value:<10}".rstrip()
