"""The events of a response, for those who follow it: where they begin and how they end."""

from __future__ import annotations

import msgspec
import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_router.http.errors import HttpError
from baton_router.http.response_stores.local_responses import LocalResponses
from baton_router.http.response_stores.response_store import StoredResponse
from baton_router.http.responses.conversations import follow_response
from baton_router.http.responses.replies import Status, StreamEvent, TextPiece
from baton_router.http.responses.response_reply import new_response
from baton_router.http.responses.schemas import ResponsesRequest
from baton_router.process.http_settings import ResponseStoreLimits


async def followed(store: LocalResponses, key: str, after: int = -1) -> list[StreamEvent]:
    return [event async for event in follow_response(store, key, after)]


async def keep(store: LocalResponses, status: Status, num_events: int) -> None:
    """Keep a response `t:a` with so many events, which is over."""
    response = new_response(
        ResponsesRequest(input="x"), name="a", model="m", params=SamplingParams(), is_stored=True
    )
    body = msgspec.json.encode(response)
    running = await store.put("t:a", StoredResponse(body=body, has_events=True), lambda: None)
    assert running is not None
    for number in range(num_events):
        event = TextPiece(sequence_number=number, item_id="i", output_index=0, delta="d", logprobs=[])
        running.append(msgspec.json.encode(event))
    response.status = status
    assert await running.finish(msgspec.json.encode(response), status)


async def test_the_last_event_says_how_the_response_ended_and_none_that_it_was_cancelled() -> None:
    store = LocalResponses(ResponseStoreLimits())
    ends: list[tuple[Status, list[str]]] = [
        ("completed", ["Completed"]),
        ("incomplete", ["Incomplete"]),
        ("failed", ["Failed"]),
        ("cancelled", []),
    ]
    for status, names in ends:
        await keep(store, status, 2)
        events = await followed(store, "t:a", 0)
        assert [type(event).__name__ for event in events] == ["TextPiece", *names]
        assert [event.sequence_number for event in events] == [1, 2][: len(events)]
        assert await followed(store, "t:a", 2) == []
    with pytest.raises(HttpError, match="response_id is 'b'"):
        await followed(store, "t:b")


async def test_a_number_whose_events_are_no_longer_kept_is_refused_by_name() -> None:
    store = LocalResponses(ResponseStoreLimits(num_bytes=8 * 1000))
    await keep(store, "completed", 20)
    with pytest.raises(InvalidRequestError, match=r"starting_after is 3; allowed: (\d+) or more") as caught:
        await followed(store, "t:a", 3)
    first = int(str(caught.value).split("allowed: ")[1].split()[0])
    assert len(await followed(store, "t:a", first)) == 20 - first
    assert 3 < first < 19
