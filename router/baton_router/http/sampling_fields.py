"""Fields that all generating routes share, and the requests that are made of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_router.http.calls import Call, read_context
from baton_router.http.response_format import (
    JsonSchemaFormat,
    ResponseFormat,
    StructuralTagFormat,
    StructuredOutputs,
    read_structured_outputs,
)
from baton_router.process.http_settings import AnswerSettings
from baton_router.requests.generation import GenerationRequest, Resumption
from baton_router.requests.request_reader import MAX_REQUEST_ID_CHARACTERS
from baton_router.requests.resumption import read_resumption
from baton_router.text.prompts import AnyPrompt

_PLAIN: Final = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "prompt_logprobs", "logit_bias"),
    *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"),
    *("thinking_token_budget", "skip_reading_prefix_cache", "stop", "stop_token_ids", "bad_words"),
    *("allowed_token_ids", "logprob_token_ids", "logits_processors", "stream_interval"),
)
"""Fields that mean what those of `SamplingParams` mean; null is the same as leaving them out."""
_PLACED_HERE: Final = "nothing: the router places requests and moves their blocks itself"
_REFUSED: Final = {
    "use_beam_search": "false: LLM.beam_search does that",
    "kv_transfer_params": _PLACED_HERE,
    "ec_transfer_params": _PLACED_HERE,
}
"""Fields that other servers know, and what is allowed; a value that asks for nothing is taken."""
_NO_EMBEDS: Final = {"prompt_embeds": "nothing: /v1/completions takes it, and chats take parts of this type"}
"""The same, where there are no prompt embeddings."""
_GUIDED: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
}
"""Older names of constraints, and their names in `structured_outputs`."""


class Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of all bodies. What decodes them decides whether unknown fields are refused or ignored."""


class CallFields(Fields, kw_only=True):
    """Fields of a call, whatever it computes."""

    model: str | None = None
    """A name that `/v1/models` lists. Default: the served model."""
    request_id: str | None = None
    """The name of the request, instead of the header `x-request-id`."""
    priority: int | None = None
    """Lower comes earlier. Default: 0."""
    cache_salt: str | None = None
    """Prefixes are shared only between requests with the same salt."""
    session_id: str | None = None
    """Requests with the same one go to the same worker, where that costs nothing."""


class RepetitionDetection(Fields, kw_only=True):
    """End a sequence whose last tokens are one pattern, `min_count` times."""

    max_pattern_size: int = 0
    """The longest pattern that is looked for, in tokens; 0 looks for none."""
    min_pattern_size: int = 0
    """The shortest pattern that is looked for, in tokens."""
    min_count: int = 0
    """Repetitions that end the sequence."""


class StreamOptions(Fields, kw_only=True):
    """Settings of what a stream has besides the text."""

    include_usage: bool | None = None
    """A last chunk with the usage of the whole call."""
    continuous_usage_stats: bool | None = None
    """The usage so far in each chunk."""


class SamplingFields(Fields, kw_only=True):
    """Names and meanings are OpenAI's and vLLM's."""

    n: int | None = None
    """Sequences to generate for each prompt. Default: 1."""
    temperature: float | None = None
    """Randomness of sampling; 0 takes the most likely token. Default: the model's, else 1."""
    top_p: float | None = None
    """Tokens are sampled from the most likely ones with this total probability, over 0 up to 1. Default:
    the model's, else 1."""
    top_k: int | None = None
    """Tokens are sampled from this many of the most likely; 0 and -1 mean all. Default: the model's, else
    0."""
    min_p: float | None = None
    """Tokens less likely than this share of the most likely one are left out, 0 to 1. Default: the
    model's, else 0."""
    seed: int | None = None
    """The same seed gives the same tokens. Default: a random one."""
    stop: str | list[str] | None = None
    """Texts that end a sequence and are left out of it."""
    stop_token_ids: list[int] | None = None
    """Tokens that end a sequence."""
    ignore_eos: bool | None = None
    """Generation continues after the model's end-of-sequence token."""
    min_tokens: int | None = None
    """Tokens to generate before a sequence may end. Default: 0."""
    presence_penalty: float | None = None
    """Lowers tokens that the output has, -2 to 2. Default: 0."""
    frequency_penalty: float | None = None
    """Lowers tokens by how often the output has them, -2 to 2. Default: 0."""
    repetition_penalty: float | None = None
    """Divides the scores of tokens that prompt or output have; over 1 discourages them. Default: the
    model's, else 1."""
    logit_bias: dict[str, float] | None = None
    """Scores to add, by token id."""
    include_stop_str_in_output: bool | None = None
    """The text keeps the stop string that ended it."""
    skip_special_tokens: bool | None = None
    """Special tokens are left out of the text. Default: true."""
    spaces_between_special_tokens: bool | None = None
    """Special tokens in the text have spaces between them. Default: true."""
    stream_interval: int | None = None
    """Tokens of a sequence in each event of its stream, but for the first and the last. Default: 1, or what
    --stream-interval says if that is more."""
    prompt_logprobs: int | None = None
    """Log-probabilities to return at each position of the prompt; -1 means all."""
    allowed_token_ids: list[int] | None = None
    """The only tokens that may be sampled."""
    bad_words: list[str] | None = None
    """Texts that the output does not have."""
    logprob_token_ids: list[int] | None = None
    """Tokens whose log-probabilities are returned at each position."""
    repetition_detection: RepetitionDetection | None = None
    """Ends a sequence that repeats itself."""
    thinking_token_budget: int | None = None
    """Most tokens of reasoning; needs a reasoning parser."""
    structured_outputs: StructuredOutputs | None = None
    """A constraint on the output: JSON schema, regex, choice, grammar or structural tag."""
    logits_processors: list[str] | None = None
    """Names of logits processors that the operator has loaded."""
    skip_reading_prefix_cache: bool | None = None
    """The prompt is computed even where it is cached."""
    vllm_xargs: dict[str, Any] | None = None
    """`extra_args` of `SamplingParams`."""


class RequestFields(SamplingFields, kw_only=True):
    """Sampling fields, and those of the request as a whole."""

    model: str | None = None
    """A name that `/v1/models` lists. Default: the served model."""
    stream: bool | None = None
    """The reply comes in pieces, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Settings of what a stream has beside the text; only with `stream`."""
    response_format: ResponseFormat | None = None
    """OpenAI's way to ask for JSON: text, json_object, json_schema or structural_tag."""
    priority: int | None = None
    """Lower comes earlier. Default: 0."""
    request_id: str | None = None
    """The name of the request, instead of the header `x-request-id`."""
    cache_salt: str | None = None
    """Prefixes are shared only between requests with the same salt."""
    session_id: str | None = None
    """Requests with the same one go to the same worker, where that costs nothing."""
    prompt_cache_key: str | None = None
    """The same, as OpenAI calls it; `session_id` comes first."""
    resume_token: str | None = None
    """Token of a broken stream: the same request resumes with it at any router."""
    num_received_tokens: int | list[int] | None = None
    """Tokens received of each sequence: the stream begins after them."""
    truncate_prompt_tokens: int | None = None
    """The number of the prompt's last tokens to keep; -1 means as many as fit."""
    add_special_tokens: bool | None = None
    """The tokenizer adds its special tokens. Default: true for a text, false for a conversation."""
    return_token_ids: bool | None = None
    """The reply has the token ids of prompt and output."""
    return_tokens_as_token_ids: bool | None = None
    """Log-probabilities name tokens as token_id:N."""
    guided_json: dict[str, Any] | str | None = None
    """The older name of `structured_outputs.json`."""
    guided_regex: str | None = None
    """The older name of `structured_outputs.regex`."""
    guided_choice: list[str] | None = None
    """The older name of `structured_outputs.choice`."""
    guided_grammar: str | None = None
    """The older name of `structured_outputs.grammar`."""
    guided_whitespace_pattern: str | None = None
    """Refused: `structured_outputs.disable_any_whitespace` leaves no blanks."""
    user: Any = None
    """Ignored."""
    metadata: Any = None
    """Ignored."""
    safety_identifier: Any = None
    """Ignored."""
    service_tier: Any = None
    """Ignored: there is one tier."""
    store: Any = None
    """Ignored: nothing is stored."""
    prompt_cache_retention: Any = None
    """Ignored: the workers decide what stays cached."""
    mm_processor_kwargs: Any = None
    """Ignored: prompts are text."""
    length_penalty: Any = None
    """Ignored: it matters in beam search alone."""
    best_of: int | None = None
    """Refused, but for the value of n: all sequences are returned."""
    use_beam_search: bool | None = None
    """Refused, but for false."""
    kv_transfer_params: Any = None
    """Refused where it asks for something: the router places requests and moves their blocks itself."""
    ec_transfer_params: Any = None
    """Refused where it asks for something: the router places requests and moves their blocks itself."""
    prompt_embeds: Any = None
    """Refused, but in completions."""
    truncation_side: str | None = None
    """Refused, but for left: the last tokens of a prompt are kept."""


def read_sampling(fields: SamplingFields) -> dict[str, Any]:
    """Return the sampling parameters that a client gave.

    Raises:
        InvalidRequestError: a field is not supported here, or is wrong in itself; the message names it.
    """
    sampling = {name: value for name in _PLAIN if (value := getattr(fields, name)) is not None}
    if fields.repetition_detection is not None:
        pattern = msgspec.to_builtins(fields.repetition_detection)
        sampling["repetition_detection"] = RepetitionDetectionParams(**pattern)
    if fields.vllm_xargs is not None:
        sampling["extra_args"] = fields.vllm_xargs
    if isinstance(fields, RequestFields):
        guided = {name: getattr(fields, older) for older, name in _GUIDED.items()}
        structured = read_structured_outputs(fields.structured_outputs, fields.response_format, guided)
    else:
        structured = read_structured_outputs(fields.structured_outputs)
    if structured is not None:
        sampling["structured_outputs"] = structured
    return sampling


def constraint_names(fields: RequestFields) -> dict[str, str]:
    """Return the fields that a client used in place of parts of `structured_outputs`, by those parts."""
    names = {name: older for older, name in _GUIDED.items() if getattr(fields, older) is not None}
    match fields.response_format:
        case JsonSchemaFormat():
            names["json"] = "response_format.json_schema.schema"
        case StructuralTagFormat():
            names["structural_tag"] = "response_format"
    own = fields.structured_outputs
    return {
        f"structured_outputs.{name}": given for name, given in names.items() if not getattr(own, name, None)
    }


def fill_in(fields: RequestFields, answers: AnswerSettings) -> None:
    """Fill in what the operator has set for requests that do not say it themselves. Mutates `fields`."""
    if answers.names_token_ids and fields.return_tokens_as_token_ids is None:
        fields.return_tokens_as_token_ids = True
    if answers.includes_usage and fields.stream:
        fields.stream_options = fields.stream_options or StreamOptions()
        fields.stream_options.include_usage = fields.stream_options.continuous_usage_stats = True


def check_request(fields: RequestFields, *, takes_embeds: bool = False) -> None:
    """Refuse fields of other servers that are not supported here.

    Raises:
        InvalidRequestError: naming the field.
    """
    refuse_fields(fields, _REFUSED if takes_embeds else _REFUSED | _NO_EMBEDS)
    if fields.best_of is not None and fields.best_of != (fields.n or 1):
        allowed = "nothing, or the value of n: all sequences are returned"
        raise InvalidRequestError("best_of", fields.best_of, allowed)
    if fields.truncation_side not in (None, "left"):
        allowed = "left: the last tokens of a prompt are kept"
        raise InvalidRequestError("truncation_side", fields.truncation_side, allowed)
    check_stream_options(stream=bool(fields.stream), options=fields.stream_options)


def refuse_fields(fields: msgspec.Struct, refused: Mapping[str, str]) -> None:
    """Refuse those of some fields that are set: empty values ask for nothing, nor do objects of them.

    Args:
        refused: what is allowed, by the names of the fields.

    Raises:
        InvalidRequestError: naming the field.
    """
    for name, allowed in refused.items():
        value = getattr(fields, name, None)
        if any(value.values()) if isinstance(value, dict) else value:
            raise InvalidRequestError(name, value, allowed)


def check_stream_options(*, stream: bool, options: StreamOptions | None) -> None:
    """Refuse options of a stream where there is none.

    Raises:
        InvalidRequestError: naming the field.
    """
    if options is not None and not stream:
        raise InvalidRequestError("stream_options", "given", "only beside stream: true")


def generation_requests(
    call: Call[Any], fields: RequestFields, prompts: Sequence[AnyPrompt], sampling: Mapping[str, Any]
) -> list[GenerationRequest]:
    """Return one request for each prompt; several carry the call's name and a number.

    Raises:
        InvalidRequestError: `request_id` is no name, or as `read_context` and `read_resuming`.
    """
    resumption = read_resuming(call, fields, len(prompts))
    name = call.name.adopt(fields.request_id)
    stem = name[: MAX_REQUEST_ID_CHARACTERS - 8]
    context = read_context(call, fields.session_id, fields.prompt_cache_key)
    names = [name] if len(prompts) == 1 else [f"{stem}-{number}" for number in range(len(prompts))]
    return [
        GenerationRequest(
            prompt=prompt,
            sampling=sampling,
            model=fields.model or "",
            request_id=request_id,
            cache_salt=fields.cache_salt or "",
            priority=fields.priority or 0,
            add_special_tokens=fields.add_special_tokens,
            truncate_prompt_tokens=fields.truncate_prompt_tokens,
            context=context,
            is_streamed=bool(fields.stream),
            resumption=resumption,
        )
        for prompt, request_id in zip(prompts, names, strict=True)
    ]


class ResumeFields(Protocol):
    """Fields of a request that resume a broken stream."""

    @property
    def stream(self) -> bool | None: ...
    @property
    def request_id(self) -> str | None: ...
    @property
    def resume_token(self) -> str | None: ...
    @property
    def num_received_tokens(self) -> int | list[int] | None: ...


def read_resuming(call: Call[Any], fields: ResumeFields, num_prompts: int = 1) -> Resumption | None:
    """Return what the client already has, and give the call its former name; None for a new request.

    Raises:
        InvalidRequestError: a field does not go with the others, or the token is none; the message names it.
    """
    counts = fields.num_received_tokens
    given = [counts] if isinstance(counts, int) else counts or []
    resumption = read_resumption(fields.resume_token or "", given)
    if resumption is None:
        return None
    if num_prompts > 1:
        allowed = "beside one prompt: each has a token of its own"
        raise InvalidRequestError("resume_token", f"beside {num_prompts} prompts", allowed)
    if any(given) and not fields.stream:
        allowed = "zeros, unless stream is true: other answers are whole"
        raise InvalidRequestError("num_received_tokens", counts, allowed)
    if fields.request_id is None:
        name = call.state.service.resume_tokens.read(resumption.token, time.time()).request_id
        call.name.adopt(name if name.isascii() else None)
    return resumption
