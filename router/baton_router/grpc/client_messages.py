"""Messages of gRPC clients, between protobuf and plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, Final, assert_never

from google.protobuf.message import Message

from baton_core.errors import InvalidRequestError
from baton_core.prompt_embeds import ITEM_BYTES, PLACEHOLDER, PromptEmbeds, check_places, check_sizes
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.pooling import PoolingTask
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.worker.step_plan import PooledValues
from baton_proto.v1 import baton_pb2 as pb
from baton_router.embeds.given_embeds import EmbedsLimits, EmbedsPrompt, PromptTokens, check_shape, placed
from baton_router.requests.generation import (
    Delta,
    Finished,
    GenerationEvent,
    GenerationRequest,
    PoolingRequest,
    PromptDelta,
    ReceivedSequence,
    Resumption,
)
from baton_router.requests.resumption import read_resumption
from baton_router.text.chat_template import Conversation
from baton_router.text.prompts import AnyPrompt, Prompt, TextPair

MAX_MESSAGES: Final = 4096
MAX_PART_BYTES: Final = 1 << 20
"""Size of the parts in which a large pooled result is sent."""
ROLES: Final = ("system", "user", "assistant")
_PLAIN_FIELDS: Final = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "max_tokens", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "prompt_logprobs"),
    *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "detokenize"),
    *("thinking_token_budget", "skip_reading_prefix_cache", "stream_interval"),
)
_LIST_FIELDS: Final = (
    *("stop", "stop_token_ids", "logprob_token_ids", "allowed_token_ids", "bad_words", "logits_processors"),
)


def read_request(request: pb.GenerateRequest) -> GenerationRequest:
    """Read a client's request; ranges of its fields are checked later.

    Raises:
        InvalidRequestError: the prompt is missing or no conversation, a structured output is wrong, or
            tokens were received without a resume token.
    """
    return GenerationRequest(
        prompt=_read_pooled_prompt(request),
        prompt_field="token_ids" if request.WhichOneof("prompt") == "token_ids" else "prompt",
        sampling=_read_sampling(request.sampling_params),
        model=request.model,
        request_id=request.request_id,
        cache_salt=request.cache_salt,
        priority=request.priority,
        is_streamed=True,
        resumption=_read_resumption(request),
        pooling=_read_pooling(request.pooling) if request.HasField("pooling") else None,
        **_given(request, "add_special_tokens", "truncate_prompt_tokens"),
    )


def _given(message: Message, *names: str) -> dict[str, Any]:
    """Return those of some fields that a message has."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def _read_resumption(request: pb.GenerateRequest) -> Resumption | None:
    received = tuple(
        ReceivedSequence(token_ids=tuple(one.ids), is_finished=one.is_finished)
        for one in request.received_token_ids
    )
    return read_resumption(request.resume_token, request.num_received_tokens, received)


def _read_pooled_prompt(request: pb.GenerateRequest) -> AnyPrompt | TextPair:
    """Read the prompt, or the pair of texts whose first is the prompt."""
    prompt = _read_prompt(request)
    if not request.pooling.HasField("second_text"):
        return prompt
    if not isinstance(prompt, str):
        raise InvalidRequestError("pooling.second_text", "a text", "none, unless the prompt is a text")
    return TextPair(first=prompt, second=_read_text(request.pooling.second_text))


def _read_pooling(message: pb.PoolingParams) -> PoolingRequest:
    if message.task not in tuple(PoolingTask):
        raise InvalidRequestError("pooling.task", message.task, ", ".join(PoolingTask))
    return PoolingRequest(
        task=PoolingTask(message.task),
        truncation_side=message.truncation_side or "right",
        **_given(message, "dimensions", "use_activation", "type_one_from"),
    )


def _read_prompt(request: pb.GenerateRequest) -> AnyPrompt:
    if request.prompt_embeds:
        return EmbedsPrompt(partial(_read_embeds, request))
    match request.WhichOneof("prompt"):
        case "text":
            return _read_text(request.text)
        case "token_ids":
            if not request.token_ids.ids:
                raise InvalidRequestError("token_ids", [], "at least one token id")
            return tuple(request.token_ids.ids)
        case "chat":
            return _read_conversation(request.chat)
        case _:
            raise InvalidRequestError("prompt", None, "one of text, token_ids and chat")


def _read_embeds(request: pb.GenerateRequest, limits: EmbedsLimits) -> PromptTokens:
    """Return a prompt with embeddings, and with token ids where it has any.

    Raises:
        InvalidRequestError: they are beside a text or a conversation, or out of their limits.
    """
    given = request.prompt_embeds
    if (kind := request.WhichOneof("prompt")) not in (None, "token_ids") or (kind is None and len(given) > 1):
        value = f"{len(given)} beside {kind or 'no prompt'}"
        raise InvalidRequestError(
            "prompt_embeds", value, "any number beside token_ids, or one without a prompt"
        )
    embeds = []
    for one in given:
        check_sizes(one.dtype, one.hidden_size, len(one.data))
        num_tokens = len(one.data) // (one.hidden_size * ITEM_BYTES[one.dtype])
        check_shape("prompt_embeds", (num_tokens, one.hidden_size), limits)
        embeds.append(
            PromptEmbeds.of(one.data, dtype=one.dtype, hidden_size=one.hidden_size, start=one.start)
        )
    if kind is None:
        return placed(embeds[0])
    token_ids = list(request.token_ids.ids)
    check_places(embeds, len(token_ids))
    for rows in embeds:
        token_ids[rows.start : rows.end] = [PLACEHOLDER] * rows.num_tokens
    return PromptTokens(token_ids=tuple(token_ids), embeds=tuple(embeds))


def read_tokenize_prompt(request: pb.TokenizeRequest) -> Prompt:
    """Read what is to be tokenized.

    Raises:
        InvalidRequestError: it is missing, or a field does not go with it.
    """
    ends_prompted = not request.HasField("add_generation_prompt") or request.add_generation_prompt
    match request.WhichOneof("prompt"):
        case "text":
            if request.HasField("add_generation_prompt"):
                raise InvalidRequestError("add_generation_prompt", ends_prompted, "only beside chat")
            return _read_text(request.text)
        case "chat":
            return _read_conversation(request.chat, add_generation_prompt=ends_prompted)
        case _:
            raise InvalidRequestError("prompt", None, "one of text and chat")


def _read_text(text: str) -> str:
    if not text:
        raise InvalidRequestError("text", text, "at least one character")
    return text


def _read_conversation(chat: pb.Chat, *, add_generation_prompt: bool = True) -> Conversation:
    if not chat.messages:
        raise InvalidRequestError("chat", [], "at least one message")
    if len(chat.messages) > MAX_MESSAGES:
        raise InvalidRequestError("chat", f"{len(chat.messages)} messages", f"at most {MAX_MESSAGES}")
    for message in chat.messages:
        if message.role not in ROLES:
            raise InvalidRequestError("role", message.role, ", ".join(ROLES))
    messages = tuple({"role": message.role, "content": message.content} for message in chat.messages)
    return Conversation(messages=messages, add_generation_prompt=add_generation_prompt)


def _read_sampling(message: pb.SamplingParams) -> dict[str, Any]:
    sampling = _given(message, *_PLAIN_FIELDS)
    sampling |= {name: tuple(getattr(message, name)) for name in _LIST_FIELDS if getattr(message, name)}
    if message.logit_bias:
        sampling["logit_bias"] = dict(message.logit_bias)
    if message.HasField("structured_outputs"):
        sampling["structured_outputs"] = _read_structured_outputs(message.structured_outputs)
    if message.HasField("repetition_detection"):
        rule = message.repetition_detection
        values = {name: getattr(rule, name) for name in ("max_pattern_size", "min_pattern_size", "min_count")}
        sampling["repetition_detection"] = RepetitionDetectionParams(**values)
    if message.HasField("extra_args_json"):
        try:
            sampling["extra_args"] = json.loads(message.extra_args_json)
        except (ValueError, RecursionError):
            raise InvalidRequestError("extra_args_json", message.extra_args_json, "a JSON object") from None
    return sampling


def _read_structured_outputs(message: pb.StructuredOutputs) -> StructuredOutputsParams:
    which = message.WhichOneof("constraint")
    if which is None:
        raise InvalidRequestError("structured_outputs", None, "one of its forms")
    value = tuple(message.choice.choices) if which == "choice" else getattr(message, which)
    fields = {which: value, "disable_any_whitespace": message.disable_any_whitespace}
    return StructuredOutputsParams.from_mapping(fields)


def encode_event(event: GenerationEvent) -> pb.GenerateEvent:
    """Write an event."""
    match event:
        case Delta():
            return pb.GenerateEvent(tokens=_encode_delta(event))
        case PromptDelta(start=start, logprobs=logprobs):
            entries = map(_encode_logprobs, logprobs)
            return pb.GenerateEvent(prompt_logprobs=pb.PromptLogprobsEvent(start=start, entries=entries))
        case Finished():  # what was pooled goes before it, in parts
            return pb.GenerateEvent(finished=_encode_finished(event))
    assert_never(event)


def encode_pooled(pooled: PooledValues) -> Iterator[pb.GenerateEvent]:
    """Write what was pooled, in parts that a message holds."""
    for start in range(0, max(1, len(pooled.values)), MAX_PART_BYTES):
        part = pooled.values[start : start + MAX_PART_BYTES]
        yield pb.GenerateEvent(pooled=pb.PooledEvent(shape=pooled.shape, values=part))


def _encode_delta(delta: Delta) -> pb.TokensEvent:
    event = pb.TokensEvent(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        cached_tokens=delta.num_cached_tokens,
        logprobs=map(_encode_logprobs, delta.logprobs),
        finish_reason=delta.finish_reason,
    )
    match delta.stop_reason:
        case str() as text:
            event.stop_text = text
        case int() as token_id:
            event.stop_token_id = token_id
    return event


def _encode_logprobs(entry: PositionLogprobs) -> pb.PositionLogprobs:
    return pb.PositionLogprobs(token_ids=entry.token_ids, logprobs=entry.logprobs, ranks=entry.ranks)


def _encode_finished(finished: Finished) -> pb.FinishedEvent:
    return pb.FinishedEvent(
        usage=pb.Usage(
            prompt_tokens=finished.num_prompt_tokens,
            completion_tokens=finished.num_output_tokens,
            cached_tokens=finished.num_cached_tokens,
        ),
        timings=pb.Timings(**asdict(finished.timings)),
        seed=finished.seed,
        request_id=finished.request_id,
    )
