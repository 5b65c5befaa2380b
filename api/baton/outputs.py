"""Outputs of generation: names, order and defaults are those of vLLM's documented classes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeAlias

from baton.logprobs import FlatLogprobs, PromptLogprobs, SampleLogprobs
from baton.lora import LoRARequest

_log = logging.getLogger(__name__)


@dataclass
class RequestStateStats:
    """Times of a request's phases, in seconds of the wall clock; 0 for a phase that has not begun."""

    num_generation_tokens: int = 0
    """Tokens of all sequences."""
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    """Known once the request has finished."""
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    """Seconds from the arrival to the first token."""
    is_corrupted: bool = False
    """Always False: a request whose logits are not numbers ends with an error."""
    finished_time: float | None = None

    @property
    def first_scheduled_time(self) -> float | None:
        """`scheduled_ts`, under an older name of vLLM's, as those below."""
        return self.scheduled_ts or None

    @property
    def first_token_time(self) -> float | None:
        return self.first_token_ts or None

    @property
    def last_token_time(self) -> float | None:
        return self.last_token_ts or None

    @property
    def time_in_queue(self) -> float | None:
        """A duration in seconds."""
        return self.scheduled_ts - self.queued_ts if self.scheduled_ts else None

    @property
    def num_preemptions(self) -> NoReturn:
        """Refuse: preemptions are counted for each worker.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(
            "num_preemptions is counted for each worker: the metric vllm:num_preemptions_total, "
            "or vllm:num_preemptions of get_metrics() where the engine is in this process"
        )


RequestMetrics: TypeAlias = RequestStateStats
"""The older name."""


@dataclass
class CompletionOutput:
    """One generated sequence, or only its new part if the request asks for deltas."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    """Sum over all its tokens so far; None without `logprobs`."""
    logprobs: SampleLogprobs | None = None
    routed_experts: None = None
    """Routed experts are not returned."""
    finish_reason: str | None = None
    """`stop`, `length`, `repetition` or `abort`; None while the sequence is generated."""
    stop_reason: str | int | None = None
    """The stop string or token that ended it, or `repetition_detected`; None: the tokenizer's end token."""
    lora_request: LoRARequest | None = None
    """None: that of the whole output says it."""
    sampling_mask: None = None
    spec_decode_metrics: None = None
    weight_versions: None = None
    """None, as the two before: no engine here fills them."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(init=False)
class RequestOutput:
    """One prompt and its completions."""

    request_id: str
    prompt: str | None
    """The text that was given, of a conversation what the chat template made of it; None for token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: PromptLogprobs | None
    """One entry for each prompt token, None for the first; None as a whole where they are not wanted, and
    after the first of several deltas."""
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats | None
    lora_request: LoRARequest | None
    """The adapter that computed it; None is the model alone."""
    encoder_prompt: None
    """Models with an encoder are not supported."""
    encoder_prompt_token_ids: None
    num_cached_tokens: int | None
    """Prompt tokens that were not computed for this request; None where it ends before its first token."""
    kv_transfer_params: dict[str, Any] | None
    """Facts of the KV transfer, where prefill and decode ran on different workers."""
    prompt_token_id_logprobs: ClassVar[None] = None
    ec_transfer_params: ClassVar[None] = None
    """None, as the one before: no engine here fills them."""
    num_cache_creation_tokens: None = None
    """The same."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        prompt_logprobs: PromptLogprobs | None,
        outputs: list[CompletionOutput],
        finished: bool,
        metrics: RequestStateStats | None = None,
        lora_request: LoRARequest | None = None,
        encoder_prompt: None = None,
        encoder_prompt_token_ids: None = None,
        num_cached_tokens: int | None = None,
        num_cache_creation_tokens: None = None,
        *,
        kv_transfer_params: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keyword arguments of other versions are ignored, and logged."""
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.prompt_logprobs = prompt_logprobs
        self.outputs = outputs
        self.finished = finished
        self.metrics = metrics
        self.lora_request = lora_request
        self.encoder_prompt = encoder_prompt
        self.encoder_prompt_token_ids = encoder_prompt_token_ids
        self.num_cached_tokens = num_cached_tokens
        self.num_cache_creation_tokens = num_cache_creation_tokens
        self.kv_transfer_params = kv_transfer_params
        if kwargs:
            _log.warning("RequestOutput ignores the arguments %s", ", ".join(kwargs))

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        """Take the next output of the same request.

        Args:
            aggregate: append its parts to the sequences, as deltas need it; else replace the sequences.
        """
        self.finished = self.finished or next_output.finished
        places = {completion.index: place for place, completion in enumerate(self.outputs)}
        for completion in next_output.outputs:
            place = places.get(completion.index)
            if place is None:
                self.outputs.append(completion)
            elif aggregate:
                _append(self.outputs[place], completion)
            else:
                self.outputs[place] = completion


def _append(completion: CompletionOutput, part: CompletionOutput) -> None:
    completion.text += part.text
    completion.token_ids = [*completion.token_ids, *part.token_ids]
    if part.logprobs:
        completion.logprobs = _joined(completion.logprobs, part.logprobs)
    completion.cumulative_logprob = part.cumulative_logprob
    completion.finish_reason, completion.stop_reason = part.finish_reason, part.stop_reason


def _joined(earlier: SampleLogprobs | None, later: SampleLogprobs) -> SampleLogprobs:
    joined: SampleLogprobs = FlatLogprobs() if isinstance(later, FlatLogprobs) else []
    joined.extend(earlier or ())
    joined.extend(later)
    return joined
