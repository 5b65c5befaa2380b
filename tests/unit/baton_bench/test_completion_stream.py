"""Streams of answers: in whatever pieces the bytes come, and what ends them early."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from baton_bench.answers import Answer
from baton_bench.completion_stream import MAX_EVENT_BYTES, CompletionStream, EventParser
from tests.unit.baton_bench.answers import make_answer

USAGE = {"prompt_tokens": 5, "completion_tokens": 3}


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def piece(text: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"text": text, "finish_reason": finish_reason}])


def said(finish_reason: str | None = None, **delta: object) -> bytes:
    return event(choices=[{"delta": delta, "finish_reason": finish_reason}])


COMPLETION = (
    piece("für "),
    piece("☃"),
    piece("!", "length"),
    event(choices=[], usage=USAGE),
    b"data: [DONE]\n\n",
)


def read(pieces: Iterable[bytes], status: int = 200) -> Answer:
    """One second passes with each piece."""
    answer = make_answer([])
    answer.reported_tokens = None
    stream = CompletionStream(answer)
    for number, data in enumerate(pieces, start=1):
        stream.take(data, float(number))
    stream.end(status)
    return answer


def test_events_come_out_whole_wherever_their_bytes_are_cut() -> None:
    whole = b"".join(COMPLETION).replace(b"\n\n", b"\r\n\r\n")
    for size in range(1, 40):
        answer = read(whole[start : start + size] for start in range(0, len(whole), size))
        assert "".join(answer.texts) == "für ☃!"
        assert (answer.num_prompt_tokens, answer.num_tokens) == (5, 3)


def test_fields_other_than_data_and_comments_are_passed_over() -> None:
    parser = EventParser()
    assert parser.feed(b": ping\n\nevent: x\nid: 1\ndata:a\ndata: b\n\n\n\ndata: c") == [b"a\nb"]
    assert parser.feed(b"\n\n") == [b"c"]


def test_an_event_without_end_is_refused() -> None:
    parser = EventParser()
    assert parser.feed(b"x" * MAX_EVENT_BYTES) == []
    with pytest.raises(ValueError, match="longer than"):
        parser.feed(b"x")


def test_each_piece_has_the_time_at_which_it_came() -> None:
    assert read(COMPLETION).times_s == [1.0, 2.0, 3.0]


def test_an_end_without_text_is_a_token_only_if_the_server_counts_it() -> None:
    stream = [piece(""), piece("a"), piece("", "stop")]
    assert read(stream).times_s == [1.0, 2.0]
    for num_tokens, times_s in ((2, [1.0, 2.0]), (3, [1.0, 2.0, 3.0])):
        usage = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": num_tokens})
        assert read([*stream, usage]).times_s == times_s


def test_a_chat_counts_tokens_without_text_where_they_came_but_not_its_role() -> None:
    stream = [said(role="assistant", content=""), said(content=""), said(content="a"), said("stop")]
    for num_tokens, times_s in ((1, [3.0]), (2, [2.0, 3.0]), (3, [2.0, 3.0, 4.0]), (9, [2.0, 3.0, 4.0])):
        usage = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": num_tokens})
        answer = read([*stream, usage])
        assert answer.times_s == times_s
        assert answer.texts == ["a" if time_s == 3.0 else "" for time_s in times_s]


def test_a_usage_tells_only_the_counts_that_it_has() -> None:
    answer = read([piece("a", "stop"), event(choices=None, usage={"completion_tokens": 1})])
    assert (answer.num_prompt_tokens, answer.num_tokens) == (make_answer([]).request.num_prompt_tokens, 1)


def test_a_chat_begins_with_its_first_text_and_not_with_its_role() -> None:
    stream = [
        said(role="assistant", content=""),
        said(reasoning_content="hm"),
        said(content="a"),
        said(tool_calls=[{"index": 0}]),
        said("stop"),
    ]
    assert read(stream).times_s == [2.0, 3.0, 4.0]


def test_an_end_is_told_by_its_reason_or_by_done() -> None:
    assert read([piece("a"), b"data: [DONE]\n\n"]).times_s == [1.0]
    assert read([piece("a", "stop")]).times_s == [1.0]
    with pytest.raises(ValueError, match="ended before the answer did"):
        read([piece("a")])


@pytest.mark.parametrize(
    ("pieces", "status", "message"),
    [
        ([b'{"error": {"message": "too many"}}'], 429, "HTTP 429: too many"),
        ([b'{"detail":\n"none"}'], 404, "HTTP 404: none"),
        ([b"<html>"], 502, "HTTP 502: <html>"),
        ([], 500, "HTTP 500: without a message"),
        ([piece("a"), event(error={"message": "lost"})], 200, "^lost$"),
        ([b"data: {\n\n"], 200, "no chunk of an answer"),
        ([b'{"choices": []}'], 200, "no stream of events but '{\"choices\": \\[\\]}'"),
        ([], 200, "no stream of events but empty"),
    ],
)
def test_errors_are_told_as_the_server_tells_them(pieces: list[bytes], status: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(pieces, status)
