"""The bodies of `/v1/chat/completions`: what goes out, whole or in chunks."""

from __future__ import annotations

from typing import Literal

import msgspec

from baton_router.http.reply_parts import PromptLogprobs, Usage


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str
    """JSON text."""


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool that is to be called."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ReplyMessage(msgspec.Struct, kw_only=True):
    """The whole reply."""

    role: str
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The same as `reasoning`, under its older name."""


class ReplyFunctionDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ReplyToolCallDelta(msgspec.Struct, kw_only=True):
    """A piece of a call; the first has its id, type and name."""

    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET
    function: ReplyFunctionDelta


class ReplyDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The new part of a message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """The same as `reasoning`, under its older name."""
    tool_calls: list[ReplyToolCallDelta] | None = None


class TopLogprob(msgspec.Struct, kw_only=True):
    """An alternative token."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob, kw_only=True):
    """A token of the reply and its alternatives."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of each token of the output, reasoning and tool calls included."""

    content: list[TokenLogprob]
    refusal: None = None


class ReplyTimings(msgspec.Struct, kw_only=True):
    """Timings of the request in seconds; phases that did not occur are 0."""

    queue_s: float
    """Time from acceptance to the first scheduled prompt token."""
    prefill_s: float
    """Time from there to the first token, on the worker."""
    transfer_s: float
    """Time from the decode worker's subscription to the last verified block; it overlaps prefill."""
    first_token_s: float
    """Time from acceptance to the first token at the router."""
    total_s: float
    """Time from acceptance to the end."""
    per_token_s: float
    """Mean time between the tokens after the first, of the longest sequence; 1 / tokens per second."""
    transferred_bytes: int
    """Bytes of KV that moved between workers."""
    prefill_worker: str
    """Worker that computed the prompt."""
    decode_worker: str
    """Worker that decoded; empty when the first token ended the request."""


class ChatChoice(msgspec.Struct, kw_only=True):
    """One choice of the reply."""

    index: int
    message: ReplyMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: str | None
    """`stop`, `length`, `tool_calls` or `repetition`."""
    stop_reason: str | int | None
    """The stop string or stop token that ended it."""
    token_ids: list[int] | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The reply to a chat request that is not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: None = None
    system_fingerprint: str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: None = None
    timings: ReplyTimings | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """The new part of one choice."""

    index: int
    delta: ReplyDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """A piece of a streamed reply."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    service_tier: None = None
    system_fingerprint: str | None = None
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    timings: ReplyTimings | msgspec.UnsetType = msgspec.UNSET
    resume_token: str | msgspec.UnsetType = msgspec.UNSET
    """Token in the first chunk, with which a broken stream resumes at any router."""
