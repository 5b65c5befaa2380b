"""Outputs of generation, in the shape of vLLM's documented ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from baton.api.logprobs import PromptLogprobs, SampleLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of a request's phases, in seconds of the wall clock; None for a phase that has not begun.

    The names are those of vLLM's request metrics, the older ones and those that end in `_ts`.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    time_in_queue: float | None = None
    """A duration."""
    finished_time: float | None = None
    num_generation_tokens: int = 0
    """Tokens of all sequences."""

    @property
    def first_token_latency(self) -> float:
        """Seconds from the arrival to the first token; 0 before there is one."""
        return 0.0 if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def queued_ts(self) -> float:
        return self.arrival_time

    @property
    def scheduled_ts(self) -> float:
        return self.first_scheduled_time or 0.0

    @property
    def first_token_ts(self) -> float:
        return self.first_token_time or 0.0

    @property
    def last_token_ts(self) -> float:
        return self.last_token_time or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One generated sequence, or only its new part if the request asks for deltas."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    """Sum over all its tokens so far; None without `logprobs`."""
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    """`stop`, `length`, `repetition` or `abort`; None while the sequence is generated."""
    stop_reason: str | int | None = None
    """The stop string or token that ended it, or `repetition_detected`; None: the tokenizer's end token."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One prompt and its completions."""

    request_id: str
    prompt: str | None
    """The text that was given, of a conversation what the chat template made of it; None for token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: PromptLogprobs | None = None
    """One entry for each prompt token, None for the first; None as a whole where they are not wanted, and
    after the first of several deltas."""
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    """Prompt tokens that were not computed for this request; None until it has finished."""
    kv_transfer_params: dict[str, Any] | None = None
    """Facts of the KV transfer, where prefill and decode ran on different workers."""
