"""Logits processing of a request before sampling, besides temperature and filters.

The engine may keep state of its own by sequence, but only such as it can build again from the tokens: a
sequence that is preempted or handed over continues as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """After `num_tokens` tokens of thought, the end of thinking is written for the model."""

    num_tokens: int
    start_token_ids: tuple[int, ...]
    """Empty where the prompt has begun the thinking."""
    end_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingRules:
    """Logits processing of one request, made once."""

    params: SamplingParams
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that may not be completed."""
    thinking: ThinkingBudget | None = None
    ending_token_ids: tuple[int, ...] = ()
    """Tokens that would end the sequence: not sampled before `min_tokens`."""

    @property
    def is_needed(self) -> bool:
        """True if logits of the request may change at all."""
        params = self.params
        return bool(
            self.bad_words
            or self.thinking
            or params.has_penalties
            or params.min_tokens
            or params.logit_bias
            or params.allowed_token_ids is not None
            or params.structured_outputs
            or params.logits_processors
        )


def nothing_left(
    params: SamplingParams, fields: Sequence[str], num_output_tokens: int
) -> InvalidRequestError:
    """Return the error of a request whose fields together leave no token to sample."""
    first, *others = fields
    value = getattr(params.structured_outputs, first.rsplit(".", 1)[-1], None)
    if not first.startswith("structured_outputs."):
        value = getattr(params, first)
    beside = f" beside {' and '.join(others)}" if others else ""
    allowed = (
        f"what leaves a token to sample{beside}; none is left after {num_output_tokens} tokens of output"
    )
    return InvalidRequestError(first, value, allowed)
