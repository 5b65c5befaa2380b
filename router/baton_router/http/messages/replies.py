"""The bodies of `/v1/messages`: what goes out, whole or as events, and errors."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from baton_router.http.errors import Dialect, Failure

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(msgspec.Struct, kw_only=True):
    """The tokens of a call. Those of the prompt are the sum of all three kinds of input."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    """Tokens of the prompt whose KV blocks were cached."""
    output_tokens: int


class TextPart(msgspec.Struct, tag_field="type", tag="text", kw_only=True):
    text: str


class ThinkingPart(msgspec.Struct, tag_field="type", tag="thinking", kw_only=True):
    thinking: str
    signature: str
    """A digest of the text: clients hand it back, and it is not read."""


class ToolUsePart(msgspec.Struct, tag_field="type", tag="tool_use", kw_only=True):
    """A tool that is to be called."""

    id: str
    name: str
    input: dict[str, Any]


Part = TextPart | ThinkingPart | ToolUsePart


class Message(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """The reply to a request that is not streamed."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Part]
    stop_reason: StopReason | None
    stop_sequence: str | None
    """The text that ended it, where `stop_reason` is stop_sequence."""
    usage: MessageUsage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start", kw_only=True):
    """The first event: the message without content."""

    message: Message


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start", kw_only=True):
    index: int
    content_block: Part


class PartDelta(msgspec.Struct, tag_field="type", kw_only=True):
    """A piece of a part."""


class PartTextDelta(PartDelta, tag="text_delta"):
    text: str


class PartJsonDelta(PartDelta, tag="input_json_delta"):
    partial_json: str


class PartThinkingDelta(PartDelta, tag="thinking_delta"):
    thinking: str


class PartSignatureDelta(PartDelta, tag="signature_delta"):
    signature: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta", kw_only=True):
    index: int
    delta: PartTextDelta | PartJsonDelta | PartThinkingDelta | PartSignatureDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop", kw_only=True):
    index: int


class MessageEnd(msgspec.Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta", kw_only=True):
    """How the message ended, and its usage as a whole."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop", kw_only=True):
    """The last event."""


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class TokenCount(msgspec.Struct, kw_only=True):
    """The tokens of a conversation."""

    input_tokens: int


class ThreadErrorDetails(
    msgspec.Struct, tag_field="error_code", tag="thread_unsupported_request", kw_only=True
):
    """Lets Anthropic's clients send the whole conversation with each request instead."""

    unsupported: list[str]


class MessageErrorDetail(msgspec.Struct, kw_only=True):
    type: str
    message: str
    details: ThreadErrorDetails | msgspec.UnsetType = msgspec.UNSET
    """More about an error of the field `thread`."""


class MessageError(msgspec.Struct, tag_field="type", tag="error", kw_only=True):
    """The body of every reply that is an error."""

    error: MessageErrorDetail
    request_id: str


_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(failure: Failure, request_id: str) -> MessageError:
    """Return a failure as Anthropic writes it."""
    kind = _TYPES.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
    error = failure.body.error
    detail = MessageErrorDetail(type=kind, message=error.message)
    if error.param == "thread":
        detail.details = ThreadErrorDetails(unsupported=["thread"])
    if (length := failure.length) is not None:  # clients know the error by these words
        detail.message = f"prompt is too long: {length.num_tokens} tokens > {length.most} maximum"
    return MessageError(error=detail, request_id=request_id)


ANTHROPIC: Final = Dialect(
    error=MessageError,
    error_body=error_body,
    names_events=True,
    last_event=b"",
    request_id_header="request-id",
)
