from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_core.requests.finish import FinishReason
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import PromptLogprobs, SequenceOutput
from baton_router.core.router_events import FinishRequest, RequestTimings
from baton_router.grpc.client_messages import encode_event
from baton_router.requests.generation import Delta, Finished, GenerationEvent, PromptDelta
from baton_router.requests.request_reader import PreparedRequest
from baton_router.streams.client_stream import ClientStream
from baton_router.streams.loop_turns import StreamTurns
from baton_router.text.tokenization import Tokenizer
from tests.builders import make_request
from tests.unit.router.folders import make_tokenizer

MakeStream = Callable[..., ClientStream]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return make_tokenizer(tmp_path)


@pytest.fixture
def make_stream(tokenizer: Tokenizer) -> MakeStream:
    def make(max_waiting_events: int = 8, **params: Any) -> ClientStream:
        return ClientStream(
            PreparedRequest(spec=make_request(**params)), tokenizer, max_waiting_events=max_waiting_events
        )

    return make


def output(token_ids: tuple[int, ...], index: int = 0, reason: FinishReason | None = None) -> SequenceOutput:
    return SequenceOutput(request_id="r", index=index, token_ids=token_ids, finish_reason=reason)


def events_of(stream: ClientStream) -> list[GenerationEvent]:
    """Return the events that wait in a stream that has its end."""

    async def read() -> list[GenerationEvent]:
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
    assert finished == Finished(
        request_id="r",
        num_prompt_tokens=8,
        num_output_tokens=len(hello) + 1,
        num_cached_tokens=4,
        seed=-3,
        timings=timings,
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
    event = run(stream.next_event())
    assert (event.text, event.finish_reason, event.stop_reason) == ("hel", "stop", "lo")


def test_a_stop_string_in_the_workers_own_last_tokens_needs_no_word_to_it(
    make_stream: MakeStream, tokenizer: Tokenizer
) -> None:
    stream = make_stream(stop=("lo",))
    assert not stream.push(output(tokenizer.encode("hello"), reason=FinishReason.LENGTH))
    event = run(stream.next_event())
    assert (event.finish_reason, event.stop_reason) == ("stop", "lo")


@pytest.mark.parametrize(
    ("token_id", "ignore_eos", "reason"), [(5, False, 5), (1, False, None), (1, True, 1)]
)
def test_every_stop_token_is_the_reason_but_the_tokenizers_end_token(
    make_stream: MakeStream, tokenizer: Tokenizer, token_id: int, ignore_eos: bool, reason: int | None
) -> None:
    assert tokenizer.eos_token_id == 1
    stream = make_stream(stop_token_ids=(5, 1), ignore_eos=ignore_eos)
    assert not stream.push(
        msgspec.structs.replace(output((7, token_id), reason=FinishReason.STOP), stop_token_id=token_id)
    )
    event = run(stream.next_event())
    assert (event.finish_reason, event.stop_reason, event.token_ids) == ("stop", reason, (7, token_id))


def test_a_repetition_is_the_reason_as_vllm_names_it(make_stream: MakeStream) -> None:
    stream = make_stream()
    assert not stream.push(output((7, 7), reason=FinishReason.REPETITION))
    event = run(stream.next_event())
    assert (event.finish_reason, event.stop_reason) == ("repetition", "repetition_detected")


def test_logprobs_are_cut_with_the_tokens(make_stream: MakeStream, tokenizer: Tokenizer) -> None:
    stream = make_stream(stop=("lo",), logprobs=0)
    token_ids = (*tokenizer.encode("hello"), *tokenizer.encode("world"))
    entries = tuple(
        PositionLogprobs(token_ids=(token_id,), logprobs=(-1.0,), ranks=(1,)) for token_id in token_ids
    )
    stream.push(msgspec.structs.replace(output(token_ids), logprobs=entries))
    event = run(stream.next_event())
    assert [entry.token_ids for entry in event.logprobs] == [(token_id,) for token_id in event.token_ids]
    assert event.token_ids == tokenizer.encode("hello")


def test_without_detokenizing_there_is_no_text(make_stream: MakeStream, tokenizer: Tokenizer) -> None:
    stream = make_stream(detokenize=False)
    stream.push(output(tokenizer.encode("hello"), reason=FinishReason.LENGTH))
    event = run(stream.next_event())
    assert (event.text, event.token_ids, event.finish_reason) == ("", tokenizer.encode("hello"), "length")


def test_prompt_logprobs_come_before_the_tokens(make_stream: MakeStream) -> None:
    stream = make_stream(prompt_logprobs=0)
    entries = (PositionLogprobs(token_ids=(5,), logprobs=(-1.0,), ranks=(1,)),)
    stream.push_prompt(PromptLogprobs(request_id="r", start=1, entries=entries))
    stream.push(output((5,)))
    assert run(stream.next_event()) == PromptDelta(start=1, logprobs=entries)
    assert isinstance(run(stream.next_event()), Delta)


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


def deltas_of(stream: ClientStream) -> list[tuple[int, tuple[int, ...]]]:
    """The sequence and the tokens of each event that can be read now."""
    events = iter(stream.poll, None)
    return [(event.index, event.token_ids) for event in events if isinstance(event, Delta)]


def test_a_stream_s_interval_holds_tokens_of_each_sequence_but_the_first_and_the_last(
    make_stream: MakeStream,
) -> None:
    stream, woken = make_stream(n=2, stream_interval=3), []
    stream.on_news = lambda: woken.append(len(woken))
    read = []
    for token_id in range(2, 8):
        for index in (0, 1) if token_id < 5 else (0,):
            stream.push(output((token_id,), index))
        read.append(deltas_of(stream))
    assert read == [[(0, (2,)), (1, (2,))], [], [], [(0, (3, 4, 5))], [], []]
    assert len(woken) == 3, "nobody is woken for tokens that are held"
    stream.push(output((8, 9, 10, 11)))
    assert deltas_of(stream) == [(0, (6, 7, 8, 9, 10, 11))]
    stream.push(output((12,)))
    stream.push(output((13,), reason=FinishReason.LENGTH))
    stream.push(output((5,), 1, FinishReason.LENGTH))
    assert deltas_of(stream) == [(0, (12, 13)), (1, (3, 4, 5))]


@pytest.mark.parametrize(("settings", "token_ids"), [({}, (5,)), ({"stream_interval": 8}, (5, 6, 7))])
async def test_what_came_before_an_error_or_is_held_by_an_interval_is_sent_before_it(
    make_stream: MakeStream, settings: dict[str, int], token_ids: tuple[int, ...]
) -> None:
    stream = make_stream(**settings)
    for token_id in token_ids:
        stream.push(output((token_id,)))
    stream.fail(RequestError(ErrorCode.WORKER_LOST, "worker d was lost"))
    event = await stream.next_event()
    assert isinstance(event, Delta)
    assert event.token_ids == token_ids
    with pytest.raises(RequestError, match="worker d was lost"):
        await stream.next_event()


async def test_a_client_waits_until_something_comes(make_stream: MakeStream) -> None:
    stream = make_stream()
    reading = asyncio.create_task(stream.next_event())
    await asyncio.sleep(0)
    assert not reading.done()
    stream.push(output((5,)))
    event = await reading
    assert isinstance(event, Delta)
    assert event.token_ids == (5,)


def test_tokens_that_wait_for_their_reader_come_in_one_event(
    make_stream: MakeStream, tokenizer: Tokenizer
) -> None:
    stream = make_stream(n=2, max_waiting_events=100)
    hello = tokenizer.encode("hello there")
    entries = tuple(PositionLogprobs(token_ids=(one,), logprobs=(-0.5,), ranks=(1,)) for one in hello)
    for token_id, entry in zip(hello, entries, strict=True):
        stream.push(msgspec.structs.replace(output((token_id,)), logprobs=(entry,)))
    stream.push(output(hello[:1], index=1))
    stream.push(output((5,), reason=FinishReason.LENGTH))
    first, other, last = (stream.poll() for _ in range(3))
    assert isinstance(first, Delta)
    assert (first.token_ids, tuple(first.logprobs), first.finish_reason) == (hello, entries, None)
    assert first.text == tokenizer.decode(hello)
    assert isinstance(other, Delta)
    assert isinstance(last, Delta)
    assert (other.index, other.token_ids) == (1, hello[:1])
    assert (last.index, last.token_ids, last.finish_reason) == (0, (5,), "length")
    assert stream.poll() is None


@pytest.mark.parametrize("settings", [{}, {"stream_interval": 200}], ids=repr)
def test_tokens_with_the_logprobs_of_a_vocabulary_come_in_messages_that_clients_take(
    make_stream: MakeStream, settings: dict[str, int]
) -> None:
    stream, size = make_stream(max_waiting_events=100, **settings), 30_000
    vocabulary = PositionLogprobs(
        token_ids=tuple(range(size)), logprobs=(-1.0,) * size, ranks=tuple(range(1, size + 1))
    )
    for _ in range(20):
        stream.push(msgspec.structs.replace(output((5,)), logprobs=(vocabulary,)))
    stream.push(msgspec.structs.replace(output((5,), reason=FinishReason.LENGTH), logprobs=(vocabulary,)))
    messages = [encode_event(event) for event in iter(stream.poll, None)]
    assert sum(len(one.tokens.token_ids) for one in messages) == 21
    assert len(messages) < 21, "some come in one event"
    assert max(one.ByteSize() for one in messages) < 2**20


async def test_readers_are_woken_in_turns_with_what_workers_send_between() -> None:
    loop, turns = asyncio.get_running_loop(), StreamTurns(readers_per_turn=2)
    readers = [loop.create_future() for _ in range(5)]
    for reader in readers:
        turns.wake(reader)
    counts = []
    for _ in range(4):
        counts.append(sum(reader.done() for reader in readers))
        await asyncio.sleep(0)
    turns.wake(late := loop.create_future())
    assert late.done(), "there is room again"
    assert counts == [2, 4, 5, 5]
