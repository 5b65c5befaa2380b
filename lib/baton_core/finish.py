"""Why a sequence ended, and the one rule a worker decides it by."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum

from baton_core.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Terminal reasons of a sequence; the value is also the metric label `finished_reason`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


def finish_reason(
    params: SamplingParams,
    *,
    token_id: int,
    num_output_tokens: int,
    num_tokens: int,
    eos_token_ids: Set[int],
    max_model_len: int,
) -> FinishReason | None:
    """Say whether a sequence ends with `token_id`, its newest token; None means that it goes on.

    Stop strings are not decided here: text belongs to the router.
    """
    if token_id in params.stop_token_ids or (token_id in eos_token_ids and not params.ignore_eos):
        return FinishReason.STOP
    has_all_tokens = params.max_tokens is not None and num_output_tokens >= params.max_tokens
    return FinishReason.LENGTH if has_all_tokens or num_tokens >= max_model_len else None
