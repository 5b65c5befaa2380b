"""Logits processing of a request before sampling, besides temperature and filters.

The engine may keep state of its own by sequence, but only such as it can build again from the tokens: a
sequence that is preempted or handed over continues as if nothing had happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.requests.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """After `num_tokens` tokens of thought, the end of thinking is written for the model."""

    num_tokens: int
    start_token_ids: tuple[int, ...]
    """Empty where the prompt has begun the thinking."""
    end_token_ids: tuple[int, ...]
    may_end: bool = False
    """The output may end before the thinking does, although it has a grammar."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingRules:
    """Logits processing of one request, made once."""

    params: SamplingParams
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that may not be completed."""
    thinking: ThinkingBudget | None = None
    ending_token_ids: tuple[int, ...] = ()
    """Tokens that would end the sequence: not sampled before `min_tokens`."""
