"""Routes of responses that are kept: fetch, delete and cancel them, and list the items before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from starlette.responses import Response as HttpResponse

from baton_core.errors import InvalidRequestError
from baton_router.http.calls import Call
from baton_router.http.operator_routes import Query, read_query
from baton_router.http.response_store import StoredResponse
from baton_router.http.responses.conversations import not_found
from baton_router.http.responses.replies import DeletedResponse, ItemList, Response

MAX_LISTED: Final = 100


class ResponseQuery(Query, kw_only=True):
    stream: bool = False
    """Refused, but for false: events are not kept."""


class ItemsQuery(Query, kw_only=True):
    limit: int = 20
    """Items to list, 1 to 100."""
    order: Literal["asc", "desc"] = "desc"
    """The first items come first, or the last."""
    after: str = ""
    """The id of an item: the list begins after it."""


class _Named(msgspec.Struct):
    id: str


async def show_response(call: Call[None]) -> None:
    """Raises HttpError: 404, it is not kept; InvalidRequestError: its events are asked for."""
    if read_query(call, ResponseQuery).stream:
        raise InvalidRequestError("stream", True, "false: events are not kept")
    await _reply(call, _find(call).body)


async def delete_response(call: Call[None]) -> None:
    """Raises HttpError: 404, it is not kept."""
    stored = _find(call)
    name = call.request.path_params["response_id"]
    call.state.responses.delete(call.tenant, name)
    if stored.task is not None:
        stored.task.cancel()
    await call.reply(DeletedResponse(id=name))


async def cancel_response(call: Call[None]) -> None:
    """End a response that is made in the background; one that is over stays as it is.

    Raises:
        HttpError: 404, it is not kept.
        InvalidRequestError: it is not made in the background.
    """
    stored = _find(call)
    response = msgspec.json.decode(stored.body, type=Response)
    if not response.background:
        raise InvalidRequestError("response_id", response.id, "the id of a response with background: true")
    if (task := stored.task) is not None:
        response.status = "cancelled"
        body = msgspec.json.encode(response)
        call.state.responses.update(call.tenant, response.id, body, response.status)
        task.cancel()
    await _reply(call, stored.body)


async def list_items(call: Call[None]) -> None:
    """List the items of the conversation before a response.

    Raises:
        HttpError: 404, it is not kept.
        InvalidRequestError: a parameter is out of range.
    """
    query = read_query(call, ItemsQuery)
    if not 1 <= query.limit <= MAX_LISTED:
        raise InvalidRequestError("limit", query.limit, f"an integer from 1 to {MAX_LISTED}")
    items = _find(call).items
    items = items if query.order == "asc" else items[::-1]
    names = [msgspec.json.decode(item, type=_Named).id for item in items]
    start = 0
    if query.after:
        if query.after not in names:
            raise InvalidRequestError("after", query.after, "the id of an item of this response's input")
        start = names.index(query.after) + 1
    await call.reply(_page(items, names, start, query.limit))


def _page(items: Sequence[bytes], names: Sequence[str], start: int, limit: int) -> ItemList:
    shown = names[start : start + limit]
    return ItemList(
        data=[msgspec.Raw(item) for item in items[start : start + limit]],
        first_id=shown[0] if shown else None,
        last_id=shown[-1] if shown else None,
        has_more=start + limit < len(items),
    )


def _find(call: Call[None]) -> StoredResponse:
    name = call.request.path_params["response_id"]
    stored = call.state.responses.get(call.tenant, name, call.arrived_s)
    if stored is None:
        raise not_found("response_id", name)
    return stored


async def _reply(call: Call[None], body: bytes) -> None:
    await call.respond(HttpResponse(body, media_type="application/json"))
