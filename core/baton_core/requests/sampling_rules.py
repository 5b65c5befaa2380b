"""Logits processing of a request before sampling, besides temperature and filters.

The engine may keep state of its own by sequence, but only such as it can build again from the tokens: a
sequence that is preempted or handed over continues as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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


def held_off_token_ids(params: SamplingParams, eos_token_ids: Collection[int]) -> tuple[int, ...]:
    """Return the tokens that are not sampled before `min_tokens`: end tokens, also those that end nothing."""
    return tuple(sorted({*params.stop_token_ids, *eos_token_ids})) if params.min_tokens else ()


def check_first_token(
    params: SamplingParams, bad_words: Sequence[Sequence[int]], held_off: Collection[int]
) -> None:
    """Refuse parameters that leave no token to sample at the first position already.

    Grammars are not checked: their first tokens are known once they are compiled.

    Raises:
        InvalidRequestError: naming the fields.
    """
    if params.allowed_token_ids is None:
        return
    allowed, others = set(params.allowed_token_ids), list[str]()
    bad_token_ids = {word[0] for word in bad_words if len(word) == 1}
    for field, token_ids in (("min_tokens", held_off), ("bad_words", bad_token_ids)):
        if not allowed.isdisjoint(token_ids):
            allowed.difference_update(token_ids)
            others.append(field)
    if not allowed:
        raise nothing_left(params, ["allowed_token_ids", *others], 0)
