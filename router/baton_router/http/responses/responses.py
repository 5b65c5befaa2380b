"""POST /v1/responses and /v1/responses/input_tokens: OpenAI's Responses API, answered as chats are."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_router.http.bodies import too_large
from baton_router.http.calls import Call
from baton_router.http.chat.request import chat_names, count_tokens, read_plan
from baton_router.http.chat.schemas import MAX_MESSAGES
from baton_router.http.errors import failure_of, renamed, without_numbers
from baton_router.http.generation import generating
from baton_router.http.ignored_fields import Removal
from baton_router.http.response_stores.response_store import response_key
from baton_router.http.responses.conversations import (
    ReferencedItems,
    earlier_items,
    find_response,
    follow_response,
    read_request,
    too_long,
)
from baton_router.http.responses.replies import RESPONSES, InputTokens, Response, StreamEvent
from baton_router.http.responses.request import RESPONSE_NAMES, own_items, skipped
from baton_router.http.responses.response_reply import ResponseReply
from baton_router.http.responses.schemas import InputItem, ResponsesRequest
from baton_router.http.responses.tools import offered_functions
from baton_router.http.route import BATCH_PRIORITY, CONVERTING, GENERATING, Routes, Tag

ROUTES: Final = Routes(method="POST", tag=Tag.RESPONSES, errors=GENERATING)


@ROUTES.route(
    "/v1/responses",
    "createResponse",
    "Answer a conversation, in the format of the Responses API",
    batch_defaults={"priority": BATCH_PRIORITY, "store": False},
    example={"input": "What is os.path?", "max_output_tokens": 32},
    reply=Response,
    chunk=StreamEvent,
    dialect=RESPONSES,
)
async def create_response(call: Call[ResponsesRequest]) -> None:
    """Handle a request, whole, as events or in the background.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        HttpError: 404, the response that it continues is not kept.
        RequestError: as `generating`.
    """
    state, body = call.state, call.body
    is_stored = bool(state.settings.stored_responses.num_responses) and body.store is not False
    if body.background and not is_stored:
        allowed = (
            "false, unless the response is stored: store is not false, --max-stored-responses is over 0, "
            "and beside --router-processes over 1 there is --redis"
        )
        raise InvalidRequestError("background", True, allowed)
    earlier = await _complete(call)
    with renamed(_names(body)):
        chat, items = await call.read(read_request, body, earlier, is_stored=is_stored)
        body.input = []
        del earlier
        with chat_names(chat):
            plan, requests = await read_plan(call, chat)
            async with generating(call, requests, outlives_client=bool(body.background)) as generation:
                reply = ResponseReply(call, chat, plan, generation, is_stored=is_stored)
                del plan, requests  # a conversation can be large, and a reply takes long
                await reply.keep(items)
                del items
                try:
                    await _answer(call, reply)
                except BaseException:
                    reply.discard()
                    raise


@ROUTES.route(
    "/v1/responses/input_tokens",
    "countResponseTokens",
    "The number of tokens of such a conversation, which is not answered",
    example={"input": "What is os.path?"},
    errors=CONVERTING,
)
async def count_input_tokens(call: Call[ResponsesRequest]) -> InputTokens:
    """Reply with the number of tokens of a conversation; fields that matter for its reply alone are ignored.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
        HttpError: 404, the response that it continues is not kept.
        RequestError: as `count_tokens`, or UNAVAILABLE: the store cannot be reached.
    """
    earlier = await _complete(call)
    with renamed(_names(call.body)):
        chat, _ = await call.read(read_request, call.body, earlier, is_stored=False)
        with chat_names(chat):
            return InputTokens(input_tokens=await count_tokens(call, chat))


async def _complete(call: Call[ResponsesRequest]) -> list[bytes]:
    """Put items in the places of references to them; return the JSON of the items before the request's own.

    Both count as a part of its body. What the model does not get is noted.

    Raises:
        InvalidRequestError: the model does not get something, and the call is strict.
        HttpError: 404, an item or the earlier response is not kept; 413, the items that are referred to, or
            those of the conversation, are larger than a body.
        RequestError: UNAVAILABLE, the store cannot be reached.
    """
    _note_skipped(call)
    earlier = await _earlier(call)
    await _resolve_references(call)
    return earlier


def _names(body: ResponsesRequest) -> dict[str, str]:
    """Return the names that fields of the chat have in errors."""
    offered = enumerate(offered_functions(body.tools))
    fields = {
        f"tools[{index}].function.parameters{within}": f"{function.field}.parameters{within}"
        for index, function in offered
        for within in ("", ".type")
    }
    return {**RESPONSE_NAMES, **fields}


async def _earlier(call: Call[ResponsesRequest]) -> list[bytes]:
    name = call.body.previous_response_id
    if name is None:
        return []
    earlier = await find_response(
        call.state.responses,
        response_key(call.tenant, name),
        field="previous_response_id",
        with_items=True,
    )
    items = earlier_items(name, earlier)
    num_bytes, max_bytes = sum(map(len, items)), call.state.settings.max_body_bytes
    if num_bytes > max_bytes:
        raise too_long(name, num_bytes, max_bytes)
    call.room.add(num_bytes)
    await call.room.wait_to_decode(call.tenant)
    return items


def _note_skipped(call: Call[ResponsesRequest]) -> None:
    """Name what the model does not get in the reply's header, as unknown fields are."""
    removal = Removal()
    for field, kind in skipped(call.body):
        if call.is_strict:
            allowed = "what a model is given: no tool is run here, and --strict-fields is set"
            raise InvalidRequestError(f"{field}.type", kind, allowed)
        removal.add(without_numbers(field), kind)
    call.note_ignored(removal)


async def _resolve_references(call: Call[ResponsesRequest]) -> None:
    items = own_items(call.body)
    if len(items) > MAX_MESSAGES:
        return  # it is refused with those of earlier responses
    referenced = ReferencedItems(call.state.responses, call.tenant)
    num_bytes, max_bytes = 0, call.state.settings.max_body_bytes
    for index, item in enumerate(items):
        if item.kind == "item_reference":
            found = await referenced.find(item.id or "", field=f"input[{index}].id")
            num_bytes += len(found)
            if num_bytes > max_bytes:
                raise too_large(max_bytes)
            call.room.add(len(found))
            await call.room.wait_to_decode(call.tenant)
            await call.state.share.turn()
            items[index] = msgspec.json.decode(found, type=InputItem)


async def _answer(call: Call[ResponsesRequest], reply: ResponseReply) -> None:
    if call.body.background:
        await _answer_in_background(call, reply)
    elif call.body.stream:
        await call.stream(reply.events())
    else:
        await reply.run()
        await call.reply(reply.response)


async def _answer_in_background(call: Call[ResponsesRequest], reply: ResponseReply) -> None:
    if not call.body.stream:
        await call.reply(reply.response)
        await reply.run_in_background()
        return
    sending = asyncio.create_task(_send_events(call, reply.key))
    try:
        await reply.run_in_background()
        await sending
    finally:
        sending.cancel()


async def _send_events(call: Call[ResponsesRequest], key: str) -> None:
    """Send the events of a response that goes on without its client."""
    try:
        async with call.while_connected():
            await call.stream(follow_response(call.state.responses, key))
    except Exception as error:
        await call.fail(failure_of(error))
