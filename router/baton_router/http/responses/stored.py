"""Routes of responses that are kept: fetch, delete and cancel them, and list the items before them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from starlette.responses import Response as HttpResponse

from baton_core.errors import InvalidRequestError
from baton_router.http.calls import Call
from baton_router.http.kept import check_limit, page_of, start_after
from baton_router.http.response_stores.response_store import StoredResponse, response_key
from baton_router.http.responses.conversations import find_response, follow_response, not_found
from baton_router.http.responses.replies import RESPONSES, DeletedResponse, ItemList, Response, StreamEvent
from baton_router.http.route import Query, Routes, Tag

ROUTES: Final = Routes(tag=Tag.RESPONSES, errors=(400, 404, 503))
_PATH: Final = "/v1/responses/{response_id}"

MAX_LISTED: Final = 100
_MAX_NUMBER: Final = 2**31 - 1


class ResponseQuery(Query, kw_only=True):
    stream: bool = False
    """The reply is the events of a response made with background and stream, until it is over."""
    starting_after: int | None = None
    """The number of the last event that the client has; beside stream."""
    include_obfuscation: bool = False
    """Ignored: events are not padded."""
    include: list[str] = msgspec.field(default_factory=list)
    """Ignored: a response has what its request wanted."""


class ItemsQuery(Query, kw_only=True):
    limit: int = 20
    """Items to list, 1 to 100."""
    order: Literal["asc", "desc"] = "desc"
    """The first items come first, or the last."""
    after: str = ""
    """The id of an item: the list begins after it."""
    include: list[str] = msgspec.field(default_factory=list)
    """Ignored: items are whole."""


class _Named(msgspec.Struct):
    id: str


@ROUTES.route(
    _PATH,
    "getResponse",
    "A response that is kept, or its events",
    reply=Response,
    chunk=StreamEvent,
    dialect=RESPONSES,
)
async def show_response(call: Call[None], query: ResponseQuery) -> HttpResponse | None:
    """Reply with a response, or with its events.

    Raises:
        HttpError: 404, it is not kept.
        InvalidRequestError: a parameter is out of range, or the events are not kept.
        RequestError: UNAVAILABLE, the store cannot be reached.
    """
    after = query.starting_after
    if after is not None and not (query.stream and 0 <= after <= _MAX_NUMBER):
        allowed = f"an integer from 0 to {_MAX_NUMBER}, beside stream=true"
        raise InvalidRequestError("starting_after", after, allowed)
    stored = await _find(call)
    if not query.stream:
        return _json(stored.body)
    if not stored.has_events:
        allowed = "false, unless the response was made with background: true and stream: true"
        raise InvalidRequestError("stream", True, allowed)
    async with call.while_connected():
        events = follow_response(call.state.responses, _key(call), -1 if after is None else after)
        await call.stream(events)
    return None


@ROUTES.route(_PATH, "deleteResponse", "Forget a response", method="DELETE", errors=(404, 503))
async def delete_response(call: Call[None]) -> DeletedResponse:
    """Raises HttpError: 404, it is not kept."""
    name = call.request.path_params["response_id"]
    if not await call.state.responses.delete(_key(call)):
        raise not_found("response_id", name)
    return DeletedResponse(id=name)


@ROUTES.route(
    f"{_PATH}/cancel",
    "cancelResponse",
    "End a response that is made in the background",
    method="POST",
    reply=Response,
)
async def cancel_response(call: Call[None]) -> HttpResponse:
    """End a response that is made in the background; one that is over stays as it is.

    Raises:
        HttpError: 404, it is not kept.
        InvalidRequestError: it is not made in the background.
    """
    stored = await _find(call)
    response = msgspec.json.decode(stored.body, type=Response)
    if not response.background:
        raise InvalidRequestError("response_id", response.id, "the id of a response with background: true")
    if stored.status == "in_progress":
        response.status = "cancelled"
        await call.state.responses.finish(_key(call), msgspec.json.encode(response), response.status)
        stored = await _find(call)
    return _json(stored.body)


@ROUTES.route(f"{_PATH}/input_items", "listInputItems", "The items of the conversation before a response")
async def list_items(call: Call[None], query: ItemsQuery) -> ItemList:
    """List the items of the conversation before a response.

    Raises:
        HttpError: 404, it is not kept.
        InvalidRequestError: a parameter is out of range.
    """
    check_limit(query.limit, MAX_LISTED)
    items = (await _find(call, with_items=True)).items
    items = items if query.order == "asc" else items[::-1]
    names = [msgspec.json.decode(item, type=_Named).id for item in items]
    start = start_after(names, query.after, "this response's input")
    return ItemList(**page_of(list(map(msgspec.Raw, items)), names, start, query.limit))


def _key(call: Call[None]) -> str:
    return response_key(call.tenant, call.request.path_params["response_id"])


async def _find(call: Call[None], *, with_items: bool = False) -> StoredResponse:
    return await find_response(call.state.responses, _key(call), with_items=with_items)


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(body, media_type="application/json")
