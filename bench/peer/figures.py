"""Figures from times, with ratios and shares of what the machine can do at most."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.peer.scenarios import Scenario

BASE: Final = "baton"
"""The engine that the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure of a scenario."""

    title: str
    """The figure's name, with its unit."""
    scale: float = 1.0
    """The factor from the measured value to that unit."""
    digits: str = ".0f"
    is_rate: bool = False
    """True if more is better."""


MEASURES: Final = {
    "tpot_s": Measure(title="TPOT, ms", scale=1e3, digits=".1f"),
    "ttft_s": Measure(title="TTFT, ms", scale=1e3),
    "output_rate": Measure(title="output tokens/s", digits=".1f", is_rate=True),
    "total_rate": Measure(title="all tokens/s", is_rate=True),
    "first_token_s": Measure(title="start to first token, s", digits=".1f"),
    "peak_bytes": Measure(title="peak memory, GB", scale=1e-9, digits=".2f"),
    "shared_once_bytes": Measure(title="memory, shared pages once, GB", scale=1e-9, digits=".2f"),
}
TARGETS: Final = {
    ("single", "tpot_s"): {"vllm": 1.3},
    ("batch", "total_rate"): {"vllm": 1.3, "transformers": 3.0},
    ("prefill", "total_rate"): {"vllm": 1.2},
    ("prefix-warm", "output_rate"): {"vllm": 1.3},
    ("start", "first_token_s"): {"vllm": 5.0},
    ("serve", "first_token_s"): {"vllm": 5.0},
    ("start", "peak_bytes"): {"vllm": 2.0},
    ("serve", "peak_bytes"): {"vllm": 2.0},
    ("pair-1", "output_rate"): {"vllm": 3.0},
    ("pair-4", "output_rate"): {"vllm": 3.0},
}
"""Targets, as ratios to an engine, by scenario and figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a machine, with the threads of an engine."""

    bytes_per_s: float
    """Read from memory."""
    flops: float
    """Operations per second of a matrix product, two for each multiplication and addition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights of a model, as an engine computes with them."""

    num_parameters: int
    num_bytes: int

    def step_s(self, num_tokens: int, limits: Limits) -> float:
        """Return the least time of a step: its weights are read once and multiplied with each token."""
        return max(self.num_bytes / limits.bytes_per_s, 2 * self.num_parameters * num_tokens / limits.flops)


def figures_of(scenario: Scenario, answer: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a run by their names in `MEASURES`.

    Source: TPOT is (E2E - TTFT) / (n - 1), mean over the requests.

    Raises:
        ValueError: a request has another number of tokens than it asked for.
    """
    times, wall_s = answer["times_s"], answer["wall_s"]
    num_tokens = scenario.num_output_tokens
    if wrong := [len(each) for each in times if len(each) != num_tokens]:
        raise ValueError(f"a request got {wrong[0]} tokens; allowed: {num_tokens}")
    num_outputs = scenario.num_requests * num_tokens
    figures = {
        "ttft_s": statistics.fmean(each[0] for each in times),
        "output_rate": num_outputs / wall_s,
        "total_rate": (num_outputs + scenario.num_requests * scenario.num_prompt_tokens) / wall_s,
    }
    if num_tokens > 1:
        figures["tpot_s"] = statistics.fmean((each[-1] - each[0]) / (num_tokens - 1) for each in times)
    return figures


def limit_s(scenario: Scenario, weights: Weights, limits: Limits) -> float:
    """Return the least time of all requests: prompts in one step, then a step for each further token.

    K and V are left out: they are less than a tenth of the weights here.
    """
    prompts_s = weights.step_s(scenario.num_computed_tokens, limits)
    return prompts_s + (scenario.num_output_tokens - 1) * weights.step_s(scenario.num_requests, limits)


def share_of_limit(
    scenario: Scenario, measure: str, value: float, weights: Weights, limits: Limits
) -> float | None:
    """Return how near a figure is to the machine's limit; None for figures without one."""
    num_requests = scenario.num_requests
    match measure:
        case "tpot_s":
            return weights.step_s(num_requests, limits) / value
        case "output_rate":
            return value * limit_s(scenario, weights, limits) / (num_requests * scenario.num_output_tokens)
        case "total_rate":
            num_tokens = num_requests * (scenario.num_prompt_tokens + scenario.num_output_tokens)
            return value * limit_s(scenario, weights, limits) / num_tokens
    return None


def ratio(measure: str, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how many times better we are, by the medians of rounds in which both took turns."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    return mine / other if MEASURES[measure].is_rate else other / mine


def agreement(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Return the share of requests that got the same tokens."""
    same = [list(mine) == list(other) for mine, other in zip(ours, theirs, strict=True)]
    return sum(same) / len(same)
