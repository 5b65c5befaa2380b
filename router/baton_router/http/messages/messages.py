"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, answered as chats are."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_router.http.calls import Call
from baton_router.http.chat.output_parsers import find_reasoning
from baton_router.http.chat.request import (
    ChatPlan,
    chat_names,
    count_tokens,
    read_plan,
)
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.errors import renamed
from baton_router.http.generation import Generation, collect, generating
from baton_router.http.ignored_fields import Removal
from baton_router.http.messages.parts import PartWriter
from baton_router.http.messages.replies import (
    ANTHROPIC,
    Message,
    MessageDelta,
    MessageEnd,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageUsage,
    TokenCount,
)
from baton_router.http.messages.request import MESSAGE_NAMES, as_chat, unmade_edits
from baton_router.http.messages.schemas import CountRequest, MessagesRequest
from baton_router.http.route import CONVERTING, GENERATING, Query, Routes, Tag
from baton_router.requests.generation import Delta, Finished

ROUTES: Final = Routes(method="POST", tag=Tag.MESSAGES, dialect=ANTHROPIC)


class MessagesQuery(Query, kw_only=True):
    beta: str | None = None
    """Ignored; Anthropic's clients send it with what they have in beta."""


@ROUTES.route(
    "/v1/messages",
    "createMessage",
    "Answer a conversation, in Anthropic's format",
    example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
    errors=GENERATING,
    reply=Message,
    chunk=MessageEvent,
)
async def create_message(call: Call[MessagesRequest], query: MessagesQuery) -> None:
    """Handle a conversation, whole or as events.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        RequestError: as `generating`.
    """
    has_reasoning = bool(call.state.settings.reasoning_parser)
    is_streamed = bool(call.body.stream)
    _note_edits(call, call.body)
    with renamed(MESSAGE_NAMES):
        body = await call.read(as_chat, call.body, has_reasoning=has_reasoning)
        call.body.messages = []
        with chat_names(body):
            plan, requests = await read_plan(call, body)
            async with generating(call, requests) as generation:
                reply = MessageReply(call, body, plan, generation)
                del plan, requests  # a conversation can be large, and a reply takes long
                if is_streamed:
                    await call.stream(reply.events())
                else:
                    await call.reply(await reply.whole())


@ROUTES.route(
    "/v1/messages/count_tokens",
    "countMessageTokens",
    "The number of tokens of such a conversation",
    example={"messages": [{"role": "user", "content": "What is os.path?"}]},
    errors=CONVERTING,
)
async def count_message_tokens(call: Call[CountRequest], query: MessagesQuery) -> TokenCount:
    """Reply with the number of tokens of a conversation.

    Raises:
        InvalidRequestError: a field is wrong; the message names it.
        RequestError: as `count_tokens`.
    """
    _note_edits(call, call.body)
    with renamed(MESSAGE_NAMES):
        body = await call.read(as_chat, call.body, has_reasoning=False)
        return TokenCount(input_tokens=await count_tokens(call, body))


def _note_edits(call: Call[Any], body: CountRequest) -> None:
    """Name the edits of a conversation that are not made here among the fields that are ignored.

    Raises:
        InvalidRequestError: there is one, and the call is strict.
    """
    edit = next(unmade_edits(body), None)
    if edit is None:
        return
    if call.is_strict:
        raise InvalidRequestError(*edit, "one that keeps all: the conversation is taken as it is")
    call.note_ignored(Removal({"context_management.edits[]": None}, {"context_management"}))


class MessageReply:
    """The reply to one call."""

    def __init__(
        self, call: Call[MessagesRequest], body: ChatRequest, plan: ChatPlan, generation: Generation
    ) -> None:
        self._generation = generation
        self._share = call.state.share
        (spec,) = generation.specs
        token_ids, tokenizer = spec.prompt_token_ids, call.state.service.tokenizer
        reasoning = find_reasoning(call.state.settings, plan.conversation, token_ids, tokenizer)
        parser = plan.tool_use.make_parser()
        self._writer = PartWriter(reasoning.make_parser(parser) if reasoning else parser, plan.tool_use)
        self._message = Message(
            id=f"msg_{call.request_id}",
            model=body.model or call.state.service.model_names[0],
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=MessageUsage(input_tokens=len(token_ids), output_tokens=0),
        )

    async def whole(self) -> Message:
        """Return the whole message."""
        (prompt,) = await collect(self._generation, self._share)
        delta = prompt.sequences[0].as_delta()
        message = self._message
        for _ in self._writer.piece(delta):
            pass  # the parts alone are wanted
        message.content = self._writer.parts
        end = self._writer.end(delta)
        message.stop_reason, message.stop_sequence = end.stop_reason, end.stop_sequence
        message.usage = _usage_of(prompt.finished)
        return message

    async def events(self) -> AsyncGenerator[MessageEvent, None]:
        """Yield the message as events; the first comes with the first token."""
        end: MessageEnd | None = None
        has_begun = False
        async for _, event in self._generation.events:
            match event:
                case Delta():
                    if not has_begun:
                        has_begun = True
                        yield MessageStart(message=self._message)
                    for part in self._writer.piece(event):
                        yield part
                    if event.finish_reason is not None:
                        end = self._writer.end(event)
                case Finished():
                    assert end is not None, "a sequence ends before its request does"
                    yield MessageDelta(delta=end, usage=_usage_of(event))
                    yield MessageStop()


def _usage_of(finished: Finished | None) -> MessageUsage:
    """Return the usage of a call: tokens that were cached are counted apart."""
    if finished is None:
        return MessageUsage(input_tokens=0, output_tokens=0)
    return MessageUsage(
        input_tokens=finished.num_prompt_tokens - finished.num_cached_tokens,
        cache_read_input_tokens=finished.num_cached_tokens,
        output_tokens=finished.num_output_tokens,
    )
