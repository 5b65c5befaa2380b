"""The events of a response that is made in the background, for those who follow it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_router.http.response_stores.response_store import EventPage, ResponseStore
from baton_router.http.responses.conversations import find_response, not_found
from baton_router.http.responses.replies import Response, StreamEvent, last_event

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
        page = await _next_page(store, key, number)
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


async def _next_page(store: ResponseStore, key: str, number: int) -> EventPage:
    page = await store.read_events(key, number)
    if page is None:
        raise not_found("response_id", key.partition(":")[2])
    if page.first > number:
        allowed = f"{page.first - 1} or more: earlier events are no longer kept"
        raise InvalidRequestError("starting_after", number - 1, allowed)
    return page
