"""The bodies of `/v1/responses`: what goes out, whole or as events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import msgspec

from baton_router.http.chat.replies import TokenLogprob
from baton_router.http.errors import OPENAI, failure_of

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", kw_only=True):
    """A text of the reply."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text", kw_only=True):
    """A text of the reasoning."""

    text: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """A message of the reply."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    """The reasoning before a reply."""

    id: str
    status: ItemStatus
    summary: list[Any] = []
    content: list[ReasoningText]
    encrypted_content: None = None


class FunctionCallItem(
    msgspec.Struct, tag_field="type", tag="function_call", kw_only=True, omit_defaults=True
):
    """A function that is to be called."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | None = None
    """The namespace that the request gave the function."""
    arguments: str
    """JSON text."""


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int
    """Prompt tokens found in a prefix cache."""
    cache_write_tokens: int = 0
    """0: writing to the cache costs nothing. OpenAI's types demand the field."""


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int
    """Tokens of reasoning."""


class ResponseUsage(msgspec.Struct, kw_only=True):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, kw_only=True):
    """The reason why a response failed."""

    code: str
    """server_error, rate_limit_exceeded or invalid_prompt: OpenAI's list of codes is closed."""
    message: str
    """The error's text, and its code of other routes in brackets."""


_ERROR_CODES: Final = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


def response_error(error: Exception) -> ResponseError:
    """Return the reason of a response that failed by an error."""
    failure = failure_of(error)
    detail = failure.body.error
    code = _ERROR_CODES.get(failure.status, "server_error")
    return ResponseError(code=code, message=f"{detail.message} ({detail.code})")


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """The reason why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ReplyTool(msgspec.Struct, tag_field="type", tag="function", kw_only=True):
    """A tool that the request offered."""

    name: str
    description: str | None
    parameters: msgspec.Raw
    """JSON schema of its arguments, or null."""
    strict: bool | None


class ReplyNamespace(msgspec.Struct, tag_field="type", tag="namespace", kw_only=True):
    """A namespace of tools that the request offered."""

    name: str
    description: str | None
    tools: list[ReplyTool]


class Response(msgspec.Struct, kw_only=True):
    """A response: its state, its output, and the settings of its request."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    """In seconds since 1970, as `completed_at`."""
    completed_at: int | None = None
    status: Status
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[ReplyTool | ReplyNamespace]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None


class ResponseEvent(msgspec.Struct, tag_field="type", kw_only=True):
    """An event of a stream."""

    sequence_number: int = 0
    """Counts the events from 0."""


class WholeEvent(ResponseEvent, kw_only=True):
    """An event of the response as a whole."""

    response: Response


class Created(WholeEvent, tag="response.created"):
    """The first event."""


class InProgress(WholeEvent, tag="response.in_progress"):
    """The second event."""


class Completed(WholeEvent, tag="response.completed"):
    """The last event of a response that is whole."""


class Incomplete(WholeEvent, tag="response.incomplete"):
    """The last event of a response that was cut."""


class Failed(WholeEvent, tag="response.failed"):
    """The last event of a response that failed."""


class ItemAdded(ResponseEvent, tag="response.output_item.added", kw_only=True):
    """An item begins."""

    output_index: int
    item: OutputItem


class ItemDone(ResponseEvent, tag="response.output_item.done", kw_only=True):
    """An item is whole."""

    output_index: int
    item: OutputItem


class OpenItemEvent(ResponseEvent, kw_only=True):
    """An event of an item under way."""

    item_id: str
    output_index: int


class ContentEvent(OpenItemEvent, kw_only=True):
    """An event of an item's content."""

    content_index: int = 0


class PartAdded(ContentEvent, tag="response.content_part.added", kw_only=True):
    """A part of an item begins."""

    part: OutputText | ReasoningText


class PartDone(ContentEvent, tag="response.content_part.done", kw_only=True):
    """A part of an item is whole."""

    part: OutputText | ReasoningText


class TextPiece(ContentEvent, tag="response.output_text.delta", kw_only=True):
    """More of a text."""

    delta: str
    logprobs: list[TokenLogprob]


class TextDone(ContentEvent, tag="response.output_text.done", kw_only=True):
    """A text is whole."""

    text: str
    logprobs: list[TokenLogprob]


class ReasoningPiece(ContentEvent, tag="response.reasoning_text.delta", kw_only=True):
    """More of the reasoning."""

    delta: str


class ReasoningDone(ContentEvent, tag="response.reasoning_text.done", kw_only=True):
    """The reasoning is whole."""

    text: str


class ArgumentsPiece(OpenItemEvent, tag="response.function_call_arguments.delta", kw_only=True):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(OpenItemEvent, tag="response.function_call_arguments.done", kw_only=True):
    """A call's arguments are whole."""

    name: str
    arguments: str


ItemEvent = (
    ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextPiece
    | TextDone
    | ReasoningPiece
    | ReasoningDone
    | ArgumentsPiece
    | ArgumentsDone
)
StreamEvent = Created | InProgress | Completed | Incomplete | Failed | ItemEvent


_LAST: Final[Mapping[Status, type[Completed | Incomplete | Failed]]] = {
    "completed": Completed,
    "incomplete": Incomplete,
    "failed": Failed,
}


def last_event(response: Response) -> Completed | Incomplete | Failed | None:
    """Return the event that says how a response ended; None if it was cancelled: OpenAI has no such event."""
    kind = _LAST.get(response.status)
    return None if kind is None else kind(response=response)


class InputTokens(msgspec.Struct, kw_only=True):
    """The number of tokens of a conversation."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class DeletedResponse(msgspec.Struct, kw_only=True):
    """A response that is no longer stored."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemList(msgspec.Struct, kw_only=True):
    """Items of a response's input."""

    object: Literal["list"] = "list"
    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


RESPONSES: Final = replace(OPENAI, names_events=True, last_event=b"")
