"""Finish reasons of sequences, and the rule by which a worker decides them."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum

from baton_core.requests.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Terminal reasons of a sequence; the value is also the metric label `finished_reason`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


def finish_reason(
    params: SamplingParams,
    *,
    token_id: int,
    num_output_tokens: int,
    num_tokens: int,
    eos_token_ids: Set[int],
    max_model_len: int,
    is_repeating: bool = False,
) -> FinishReason | None:
    """Return why a sequence ends with `token_id`, its newest token; None while it continues.

    Before `min_tokens` only the length of the context ends it. Stop strings are not decided here: text
    belongs to the router.
    """
    may_end = num_output_tokens >= params.min_tokens
    is_eos = token_id in eos_token_ids and not params.ignore_eos
    if may_end and (is_eos or token_id in params.stop_token_ids):
        return FinishReason.STOP
    if is_full(
        params, num_output_tokens=num_output_tokens, num_tokens=num_tokens, max_model_len=max_model_len
    ):
        return FinishReason.LENGTH
    return FinishReason.REPETITION if may_end and is_repeating else None


def is_full(params: SamplingParams, *, num_output_tokens: int, num_tokens: int, max_model_len: int) -> bool:
    """Return whether a sequence ends with so many tokens, whichever they are."""
    has_all_tokens = params.max_tokens is not None and num_output_tokens >= params.max_tokens
    return has_all_tokens or num_tokens >= max_model_len
