"""Conversations of responses: their items, those that they continue, and the events of one under way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.errors import HttpError
from baton_router.http.response_stores.response_store import ResponseStore, StoredResponse, response_key
from baton_router.http.responses.items import response_of
from baton_router.http.responses.replies import Response, StreamEvent, last_event, response_error
from baton_router.http.responses.request import as_chat, call_id_of, own_items
from baton_router.http.responses.schemas import InputItem, ResponsesRequest

_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "web_search_call": "ws",
}

_ABANDONED: Final = RequestError(
    ErrorCode.UNAVAILABLE, "the router that made the response is gone, or was without Redis for too long"
)


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


class _Named(msgspec.Struct):
    id: str


async def find_response(
    store: ResponseStore, key: str, *, field: str = "response_id", with_items: bool = False
) -> StoredResponse:
    """Return a response that is kept; one whose router is gone has failed.

    Raises:
        HttpError: 404, it is not kept; `field` names it.
        RequestError: UNAVAILABLE, the store cannot be reached.
    """
    stored = await store.get(key, with_items=with_items)
    if stored is not None and stored.is_abandoned:
        response = msgspec.json.decode(stored.body, type=Response)
        response.status, response.error = "failed", response_error(_ABANDONED)
        await store.finish(key, msgspec.json.encode(response), response.status, must_be_abandoned=True)
        stored = await store.get(key, with_items=with_items)
    if stored is None:
        raise not_found(field, key.partition(":")[2])
    return stored


def not_found(field: str, name: str) -> HttpError:
    """Return the refusal of a response that is not kept; 404."""
    text = f"{field} is {name!r}; allowed: the id of a response that is kept, made with the same key"
    return HttpError(404, "not_found", text, param=field)


def too_long(name: str, num_bytes: int, max_bytes: int) -> HttpError:
    """Return the refusal of a conversation whose items so far have more bytes than a body may have; 413."""
    field = "previous_response_id"
    text = (
        f"{field} is {name!r}, with {num_bytes} bytes of items so far; "
        f"allowed: {max_bytes} (--max-body-bytes): begin another conversation"
    )
    return HttpError(413, "request_too_large", text, param=field)


def earlier_items(name: str, earlier: StoredResponse) -> list[bytes]:
    """Return the JSON of the items of a conversation so far, the response included.

    Raises:
        InvalidRequestError: the response of this name is in progress, or it failed or was cancelled.
    """
    if earlier.status not in ("completed", "incomplete"):
        allowed = f"the id of a response that is completed or incomplete; this one is {earlier.status}"
        raise InvalidRequestError("previous_response_id", name, allowed)
    output = msgspec.json.decode(earlier.body, type=_Output).output
    return [*earlier.items, *map(bytes, output)]


class ReferencedItems:
    """Finds items of responses of a tenant; those of one response after another, it is read once."""

    def __init__(self, store: ResponseStore, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._key = ""
        """Key of the last response."""
        self._output: dict[str, bytes] = {}
        """The JSON of the items of its output by their names."""

    async def find(self, name: str, *, field: str) -> bytes:
        """Return the JSON of an item of the output of a response that is kept.

        Raises:
            HttpError: 404, none is kept; `field` has its name.
            RequestError: UNAVAILABLE, the store cannot be reached.
        """
        key = response_key(self._tenant, response_of(name))
        if key != self._key:
            stored = await self._store.get(key)
            output = msgspec.json.decode(stored.body, type=_Output).output if stored is not None else []
            named = ((msgspec.json.decode(item, type=_Named).id, bytes(item)) for item in output)
            self._key, self._output = key, dict(named)
        if name not in self._output:
            allowed = "the id of an item in the output of a response that is kept, made with the same key"
            raise HttpError(404, "not_found", f"{field} is {name!r:.200}; allowed: {allowed}", param=field)
        return self._output[name]


def read_request(
    body: ResponsesRequest, earlier: Sequence[bytes], *, is_stored: bool
) -> tuple[ChatRequest, list[bytes]]:
    """Return the chat that a request asks for, and the JSON of its items, if they are stored.

    `earlier` are the items before those of the request.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
    """
    own = own_items(body)
    decoded = [msgspec.json.decode(item, type=InputItem) for item in earlier]
    chat = as_chat(body, [*decoded, *own])
    if not is_stored:
        return chat, []
    names = {item.id for item in decoded}
    return chat, [*earlier, *(_as_listed(item, names) for item in own)]


def _as_listed(item: InputItem, names: set[str | None]) -> bytes:
    """Return an item as it is listed: its text as a part, and an id beside `names`, which is added there.

    Where it gets another id, the one that says which call it is stays as `call_id`.
    """
    fields = _without_none(msgspec.to_builtins(item))
    if not item.id or item.id in names:
        if (call_id := call_id_of(item)) is not None:
            fields["call_id"] = call_id
        fields["id"] = f"{_PREFIXES[item.kind]}_{uuid4().hex}"
    names.add(fields["id"])
    fields["type"] = item.kind
    if item.kind == "message" and isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        fields["content"] = [{"type": kind, "text": item.content}]
    return msgspec.json.encode(fields)


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [_without_none(each) for each in value]
        if name in ("content", "output", "summary") and isinstance(value, list)
        else value
        for name, value in fields.items()
        if value is not None
    }


_events: Final[msgspec.json.Decoder[StreamEvent]] = msgspec.json.Decoder(StreamEvent)


async def follow_response(
    store: ResponseStore, key: str, after: int = -1
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of a response after number `after`, as they come, until it is over.

    Raises:
        HttpError: 404, it is no longer kept.
        InvalidRequestError: events after that number are no longer kept.
        RequestError: UNAVAILABLE, the store cannot be reached.
    """
    number = after + 1
    while True:
        page = await store.read_events(key, number)
        if page is None:
            raise not_found("response_id", key.partition(":")[2])
        if page.first > number:
            allowed = f"{page.first - 1} or more: earlier events are no longer kept"
            raise InvalidRequestError("starting_after", number - 1, allowed)
        for event in page.events:
            yield _events.decode(event)
            number += 1
        if page.is_over:
            break
        if not page.events:
            await find_response(store, key)  # that of a router which is gone is over then
    if number > page.num_events:
        return
    response = msgspec.json.decode((await find_response(store, key)).body, type=Response)
    if (last := last_event(response)) is not None:
        last.sequence_number = number
        yield last
