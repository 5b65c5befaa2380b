"""Differences between two engines' outputs, and between two servers' answers, are found and named."""

from __future__ import annotations

import json
from typing import Any

from bench.peer.compare_decisions import decision_of
from bench.peer.differences import Answer, answer_differences, output_differences, stream_events
from bench.peer.http_requests import REQUESTS
from bench.peer.parameter_sets import PARAMETER_SETS, REFUSED_SETS

JSON = "application/json"


def outputs(**changes: Any) -> list[dict[str, Any]]:
    """The output of one prompt, with one token and its log-probability."""
    one = {
        "index": 0,
        "text": " is",
        "token_ids": [5],
        "cumulative_logprob": -0.5,
        "logprobs": [{"5": [-0.5, 1, " is"]}],
        "finish_reason": "length",
        "stop_reason": None,
        **changes,
    }
    return [{"prompt_token_ids": [1, 2], "prompt_logprobs": None, "outputs": [one]}]


def answer(body: Any, status: int = 200) -> Answer:
    return Answer(status, JSON, json.dumps(body).encode())


def stream(*chunks: Any) -> Answer:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return Answer(200, "text/event-stream; charset=utf-8", "".join([*lines, "data: [DONE]\n\n"]).encode())


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields.pop("delta", {}), "finish_reason": None, **fields}]}


def test_equal_outputs_have_no_difference() -> None:
    near = outputs(logprobs=[{"5": [-0.50005, 1, " is"]}], cumulative_logprob=-0.50005)
    assert list(output_differences(outputs(), near)) == []


def test_each_aspect_of_an_output_is_named() -> None:
    assert list(output_differences(outputs(), outputs(text=" was"))) == ["text"]
    assert list(output_differences(outputs(), outputs(stop_reason=5))) == ["stop_reason"]
    assert list(output_differences(outputs(), outputs(logprobs=[{"5": [-0.6, 2, "is"]}]))) == [
        "log-probabilities",
        "ranks",
        "decoded_token",
    ]
    assert list(output_differences(outputs(), outputs(logprobs=[{"6": [-0.5, 1, " is"]}]))) == [
        "listed tokens"
    ]


def test_a_refusal_is_a_difference_unless_both_refuse() -> None:
    refused = {"error": "n is 0"}
    assert list(output_differences(refused, outputs())) == ["not refused"]
    assert list(output_differences(outputs(), refused)) == ["refused"]
    assert list(output_differences(refused, {"error": "another text"})) == []


def test_status_and_keys_of_answers_are_compared() -> None:
    assert list(answer_differences(answer({}, 200), answer({}, 400))) == ["status 200, here 400"]
    theirs = answer({"id": "1", "choices": [{"text": "a", "extra": {"x": 1}}], "unset": None})
    ours = answer({"id": "2", "choices": [{"text": "a"}], "more": None})
    assert list(answer_differences(theirs, ours)) == [
        "without choices[].extra",
        "without null unset",
        "with more",
    ]


def test_results_are_compared_of_streams_as_a_whole() -> None:
    assert list(answer_differences(answer({"count": 1, "id": "a"}), answer({"count": 2, "id": "b"}))) == [
        "another count"
    ]
    parts = [choice(index=index, text=text) for index, text in ((0, "a"), (1, "c"), (0, "b"), (1, "d"))]
    pieces = [choice(index=index, text=text) for index, text in ((1, "cd"), (0, "a"), (0, "b"))]
    assert list(answer_differences(stream(*parts), stream(*pieces))) == []
    assert list(answer_differences(stream(*parts), stream(*pieces[:2]))) == ["another choices.0.text"]


def test_the_order_of_a_stream_s_events_is_compared() -> None:
    role, text = choice(delta={"role": "assistant"}), choice(delta={"content": "a"})
    end, usage = choice(finish_reason="stop"), {"choices": [], "usage": {}}
    whole = stream(role, text, text, end, usage)
    assert stream_events(whole) == ["role", "content", "finish", "usage", "[DONE]"]
    one_chunk = choice(delta={"content": "aa"})
    assert list(answer_differences(whole, stream(role, one_chunk, end, usage))) == []
    found = list(answer_differences(whole, stream(text, role, end, usage)))
    assert found[0] == "events role content finish usage [DONE], here content role finish usage [DONE]"


def test_the_order_of_events_is_that_within_each_choice() -> None:
    chunks = [choice(index=index, finish_reason=reason) for index in (0, 1) for reason in (None, "stop")]
    first, first_end, second, second_end = chunks
    in_turn, one_by_one = stream(first, second, first_end, second_end), stream(*chunks)
    assert stream_events(in_turn) == stream_events(one_by_one) == ["content", "finish", "[DONE]"] * 2
    assert stream_events(stream(first_end, second, first, second_end)) != stream_events(in_turn)


def test_decisions_are_found_by_name_and_difference() -> None:
    assert decision_of("n 2, greedy", "not refused")
    assert decision_of("chat_stream", "with choices[].resume_token")
    assert decision_of("greedy", "token_ids") == ""


def test_as_many_sets_and_requests_are_compared_as_are_promised() -> None:
    assert len(PARAMETER_SETS) >= 70
    assert not PARAMETER_SETS.keys() & REFUSED_SETS.keys()
    assert len(REQUESTS) == 216
