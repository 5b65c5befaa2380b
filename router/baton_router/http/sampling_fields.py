"""The fields that all routes which generate have in common, and what they mean to the router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_router.generation import GenerationRequest, Prompt
from baton_router.http.calls import Call
from baton_router.http.request_context import read_context
from baton_router.http.response_format import ResponseFormat, StructuredOutputs, read_output_form
from baton_router.http.resuming import read_resuming
from baton_router.prompt_reader import MAX_REQUEST_ID_CHARACTERS

_PLAIN: Final = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "prompt_logprobs", "logit_bias"),
    *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"),
    *("thinking_token_budget", "skip_reading_prefix_cache", "stop", "stop_token_ids", "bad_words"),
    *("allowed_token_ids", "logprob_token_ids", "logits_processors"),
)
"""Fields that mean what those of `SamplingParams` mean; null is the same as leaving them out."""
_PLACED_HERE: Final = "nothing: the router places requests and moves their blocks itself"
_REFUSED: Final[Mapping[str, tuple[object, str]]] = {
    "best_of": (None, "nothing, or the value of n: all sequences are returned"),
    "use_beam_search": (False, "false: LLM.beam_search does that"),
    "length_penalty": (1.0, "1.0: there is no beam search here"),
    "kv_transfer_params": (None, _PLACED_HERE),
    "ec_transfer_params": (None, _PLACED_HERE),
    "prompt_embeds": (None, "nothing: prompts are text or token ids"),
    "store": (False, "false: nothing is stored"),
    "truncation_side": ("left", "left: the last tokens of a prompt are kept"),
}
"""Fields that other servers know: the value that asks for nothing, and what is allowed."""


class Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of all bodies: unknown fields are refused."""


class RepetitionDetection(Fields, kw_only=True):
    """End a sequence whose last tokens are one pattern, `min_count` times."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class StreamOptions(Fields, kw_only=True):
    """What a stream tells beside the text."""

    include_usage: bool | None = None
    """A last chunk with the usage of the whole call."""
    continuous_usage_stats: bool | None = None
    """The usage so far in each chunk."""
    include_obfuscation: bool | None = None
    """Only false: chunks are not padded."""


class SamplingFields(Fields, kw_only=True):
    """Names and meanings are OpenAI's and vLLM's."""

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logprob_token_ids: list[int] | None = None
    repetition_detection: RepetitionDetection | None = None
    thinking_token_budget: int | None = None
    structured_outputs: StructuredOutputs | None = None
    logits_processors: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    """`extra_args` of `SamplingParams`."""


class RequestFields(SamplingFields, kw_only=True):
    """Sampling, and what is told of the request as a whole."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    """Requests with the same one go to the same worker, where that costs nothing."""
    prompt_cache_key: str | None = None
    """The same, as OpenAI calls it; `session_id` comes first."""
    resume_token: str | None = None
    """Of an answer whose stream broke: the same request goes on with it, at any router."""
    num_received_tokens: int | list[int] | None = None
    """What was received of it, one number a sequence: the stream begins behind that."""
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    user: str | None = None
    """Not looked at."""
    metadata: dict[str, str] | None = None
    """Not looked at."""
    safety_identifier: str | None = None
    """Not looked at."""
    best_of: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    prompt_embeds: Any = None
    store: Any = None
    truncation_side: Any = None


def read_given(fields: SamplingFields) -> dict[str, Any]:
    """Return the sampling parameters that a client gave.

    Raises:
        InvalidRequestError: a field cannot be had here, or is wrong in itself; the message names it.
    """
    given = {name: value for name in _PLAIN if (value := getattr(fields, name)) is not None}
    if fields.repetition_detection is not None:
        pattern = msgspec.to_builtins(fields.repetition_detection)
        given["repetition_detection"] = RepetitionDetectionParams(**pattern)
    if fields.vllm_xargs is not None:
        given["extra_args"] = fields.vllm_xargs
    form = fields.structured_outputs
    response_format = fields.response_format if isinstance(fields, RequestFields) else None
    if (output_form := read_output_form(form, response_format)) is not None:
        given["structured_outputs"] = output_form
    return given


def check_request(fields: RequestFields) -> None:
    """Refuse what is known elsewhere and cannot be had here.

    Raises:
        InvalidRequestError: naming the field.
    """
    for name, (neutral, allowed) in _REFUSED.items():
        value = getattr(fields, name)
        is_every_sequence = name == "best_of" and value == (fields.n or 1)
        if value is not None and value != neutral and not is_every_sequence:
            raise InvalidRequestError(name, value, allowed)
    check_stream_options(stream=bool(fields.stream), options=fields.stream_options)


def check_stream_options(*, stream: bool, options: StreamOptions | None) -> None:
    """Refuse options of a stream where there is none.

    Raises:
        InvalidRequestError: naming the field.
    """
    if options is not None and not stream:
        raise InvalidRequestError("stream_options", "given", "only beside stream: true")
    if options is not None and options.include_obfuscation:
        raise InvalidRequestError("stream_options.include_obfuscation", True, "false: chunks are not padded")


def generation_requests(
    call: Call[Any], fields: RequestFields, prompts: Sequence[Prompt], given: Mapping[str, Any]
) -> list[GenerationRequest]:
    """Return one request for each prompt; several carry the call's name and a number.

    Raises:
        InvalidRequestError: `request_id` is no name, or as `read_context` and `read_resuming`.
    """
    resumption = read_resuming(call, fields, len(prompts))
    name = call.adopt_request_id(fields.request_id)
    stem = name[: MAX_REQUEST_ID_CHARACTERS - 8]
    context = read_context(call, fields.session_id, fields.prompt_cache_key)
    names = [name] if len(prompts) == 1 else [f"{stem}-{number}" for number in range(len(prompts))]
    return [
        GenerationRequest(
            prompt=prompt,
            given=given,
            model=fields.model or "",
            request_id=request_id,
            cache_salt=fields.cache_salt or "",
            priority=fields.priority or 0,
            add_special_tokens=fields.add_special_tokens,
            truncate_prompt_tokens=fields.truncate_prompt_tokens,
            context=context,
            resumption=resumption,
        )
        for prompt, request_id in zip(prompts, names, strict=True)
    ]
