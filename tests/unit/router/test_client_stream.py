from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_core.finish import FinishReason
from baton_core.router_events import FinishRequest, RequestTimings
from baton_core.router_messages import SequenceOutput
from baton_proto.v1 import baton_pb2 as pb
from baton_router.client_stream import ClientStream
from baton_router.tokenization import Tokenizer
from tests.builders import make_request
from tests.unit.router.folders import make_tokenizer

MakeStream = Callable[..., ClientStream]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return make_tokenizer(tmp_path)


@pytest.fixture
def make_stream(tokenizer: Tokenizer) -> MakeStream:
    def make(max_waiting_events: int = 8, **params: Any) -> ClientStream:
        return ClientStream(make_request(**params), tokenizer, max_waiting_events=max_waiting_events)

    return make


def output(token_ids: tuple[int, ...], index: int = 0, reason: FinishReason | None = None) -> SequenceOutput:
    return SequenceOutput(request_id="r", index=index, token_ids=token_ids, finish_reason=reason)


def events_of(stream: ClientStream) -> list[pb.GenerateEvent]:
    """What waits in a stream that has its end."""

    async def read() -> list[pb.GenerateEvent]:
        events = []
        while (event := await stream.next_event()) is not None:
            events.append(event)
        return events

    return run(read())


def run(reading: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(reading, 5.0))


def test_the_last_event_bears_what_was_sent_and_where_the_time_went(
    make_stream: MakeStream, tokenizer: Tokenizer
) -> None:
    stream = make_stream(seed=-3)
    hello = tokenizer.encode("hello")
    assert not stream.push(output(hello))
    assert not stream.push(output((5,), reason=FinishReason.LENGTH))
    timings = RequestTimings(queue_s=0.5, transferred_bytes=7, decode_worker="d")
    stream.finish(
        FinishRequest(
            request_id="r", num_prompt_tokens=8, num_output_tokens=99, num_cached_tokens=4, timings=timings
        )
    )
    *_, finished = events_of(stream)
    usage = pb.Usage(prompt_tokens=8, completion_tokens=len(hello) + 1, cached_tokens=4)
    assert finished.finished == pb.FinishedEvent(
        usage=usage,
        timings=pb.Timings(queue_s=0.5, transferred_bytes=7, decode_worker="d"),
        seed=-3,
        request_id="r",
    )


def test_tokens_after_a_stop_string_are_neither_sent_nor_counted(
    make_stream: MakeStream, tokenizer: Tokenizer
) -> None:
    stream = make_stream(stop=("lo",))
    hello = tokenizer.encode("hello")
    extra = tokenizer.encode("world")
    assert stream.push(output(hello + extra))
    assert not stream.push(output(extra))
    assert stream.num_sent_tokens == len(hello)
    event = run(stream.next_event()).tokens
    assert (event.text, event.finish_reason, event.stop_text) == ("hel", "stop", "lo")


def test_a_stop_string_in_the_workers_own_last_tokens_needs_no_word_to_it(
    make_stream: MakeStream, tokenizer: Tokenizer
) -> None:
    stream = make_stream(stop=("lo",))
    assert not stream.push(output(tokenizer.encode("hello"), reason=FinishReason.LENGTH))
    event = run(stream.next_event()).tokens
    assert (event.finish_reason, event.stop_text) == ("stop", "lo")


@pytest.mark.parametrize(
    ("stop_token_ids", "stop_reason"), [((5, 6), "stop_token_id"), ((6,), None), ((), None)]
)
def test_a_stop_token_is_named_when_the_client_named_it(
    make_stream: MakeStream, stop_token_ids: tuple[int, ...], stop_reason: str | None
) -> None:
    stream = make_stream(stop_token_ids=stop_token_ids)
    assert not stream.push(output((7, 5), reason=FinishReason.STOP))
    event = run(stream.next_event()).tokens
    assert event.finish_reason == "stop"
    assert event.WhichOneof("stop_reason") == stop_reason
    assert list(event.token_ids) == [7, 5]


def test_a_client_that_leaves_too_much_unread_gets_the_error_alone(make_stream: MakeStream) -> None:
    stream = make_stream(max_waiting_events=2, n=2)
    for index in (0, 1, 0, 1):
        stream.push(output((5,), index))
    with pytest.raises(RequestError, match="reads too slowly: 4 events") as caught:
        stream.push(output((5,)))
    assert caught.value.code is ErrorCode.OVERLOADED
    stream.fail(caught.value)
    with pytest.raises(RequestError, match="reads too slowly"):
        run(stream.next_event())


def test_what_came_before_an_error_is_sent_before_it(make_stream: MakeStream) -> None:
    stream = make_stream()
    stream.push(output((5,)))
    stream.fail(RequestError(ErrorCode.WORKER_LOST, "worker d was lost"))
    assert run(stream.next_event()).tokens.token_ids == [5]
    with pytest.raises(RequestError, match="worker d was lost"):
        run(stream.next_event())


def test_a_client_waits_until_something_comes(make_stream: MakeStream) -> None:
    async def read() -> pb.GenerateEvent | None:
        stream = make_stream()
        reading = asyncio.create_task(stream.next_event())
        await asyncio.sleep(0)
        assert not reading.done()
        stream.push(output((5,)))
        return await reading

    assert run(read()).tokens.token_ids == [5]
