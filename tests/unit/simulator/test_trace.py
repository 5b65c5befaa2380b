"""A file of a trace: what is read of it, how it is refused, when its requests come and with which prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton_core.errors import InvalidConfigError
from baton_simulator.capacity.trace import Scale, arrival_times, read_trace
from baton_simulator.capacity.trace_formats import TraceRequest
from baton_simulator.capacity.workload import make_workload


def make_request(*ids: int, at_ms: int = 0) -> TraceRequest:
    return TraceRequest(timestamp=at_ms, input_length=512 * len(ids), output_length=7, hash_ids=list(ids))


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_first_requests_of_a_file_are_read(tmp_path: Path) -> None:
    line = {"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [4, 9]}
    path = write_lines(tmp_path / "trace", line, {**line, "timestamp": 6000}, {**line, "timestamp": 9000})
    assert read_trace(path, 2) == [
        TraceRequest(timestamp=at_ms, input_length=600, output_length=7, hash_ids=[4, 9])
        for at_ms in (3000, 6000)
    ]
    text = path.read_text()
    path.write_text(text, encoding="utf-8-sig")
    assert len(read_trace(path)) == 3
    path.write_text(f"\n{text} \n\n{json.dumps(line)}\n")
    with pytest.raises(InvalidConfigError, match=r"line 7 of .* has timestamp 3000; allowed: from 9000"):
        read_trace(path)


def test_a_line_of_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [4, 9]}
    with pytest.raises(InvalidConfigError, match=r"line 2 of .* has 1 hash_ids for 600 tokens"):
        read_trace(write_lines(tmp_path / "a", line, {**line, "hash_ids": [4]}))
    with pytest.raises(InvalidConfigError, match=r"line 1 of .* is no request of a trace"):
        read_trace(write_lines(tmp_path / "b", {"input_length": 600}))


def test_conversations_are_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 7, "hash_ids": [0, conversation]}
        for conversation in (5, 6, 5, 7, 6, 8, 7)
    ]
    path = write_lines(tmp_path / "trace", *lines)
    assert [request.hash_ids[1] for request in read_trace(path, every=2)] == [5, 5, 7, 7]
    assert [request.hash_ids[1] for request in read_trace(path, 3, every=2)] == [5, 5, 7]


def test_requests_of_one_timestamp_are_spread_until_the_next() -> None:
    requests = [make_request(1, at_ms=at_ms) for at_ms in (1000, 1000, 1000, 4000, 4000)]
    assert list(arrival_times(requests, 2.0)) == [0.0, 0.5, 1.0, 1.5, 2.25]


def test_a_divisor_that_cuts_ids_unevenly_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="divisor is 100; allowed: a divisor of 512"):
        Scale(divisor=100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": 100}, "line 2 of .* has timestamp 100; allowed: from 3000, that of the line above"),
        ({"input_length": 0, "hash_ids": []}, "line 2 of .* is no request of a trace"),
        ({"hash_ids": [4, -1]}, "line 2 of .* is no request of a trace"),
        ({"hash_ids": [4, 2**31]}, "line 2 of .* is no request of a trace"),
    ],
)
def test_a_line_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    line = {"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [4, 9]}
    with pytest.raises(InvalidConfigError, match=message):
        read_trace(write_lines(tmp_path / "trace", line, {**line, **change}))


def test_a_file_that_is_not_there_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"trace is .*nothing.; allowed: a readable file"):
        read_trace(tmp_path / "nothing")
    with pytest.raises(InvalidConfigError, match="trace has no requests"):
        make_workload(read_trace(write_lines(tmp_path / "empty")), Scale())


def test_prompts_of_a_workload_share_what_their_requests_share() -> None:
    requests = [make_request(1, 2, 3), make_request(1, 2, 4, at_ms=1000)]
    scale = Scale(divisor=16, output_divisor=2, speedup=2.0)
    one, other = make_workload(requests, scale)
    assert (one.at_s, other.at_s) == (0.0, 0.5)
    assert (one.num_tokens, one.session_id) == (4, "conversation-2")
    assert one.prompt_token_ids()[:64] == other.prompt_token_ids()[:64]
    assert set(one.prompt_token_ids()[64:]).isdisjoint(other.prompt_token_ids()[64:])
    assert len(one.prompt_token_ids()) == one.num_prompt_tokens == 96


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_azures_format_is_known_by_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{AZURE}2023-11-16 18:15:46.6805900,600,44\r\n2023-11-16 18:15:50.9951690,512,0\n\n")
    assert read_trace(path) == [
        TraceRequest(timestamp=0, input_length=600, output_length=44, hash_ids=[0, 1]),
        TraceRequest(timestamp=4314, input_length=512, output_length=0, hash_ids=[2]),
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("2023-11-16 18:15:46,600\n", "line 2 of .* is no request of a trace"),
        ("yesterday,600,44\n", "line 2 of .* is no request of a trace"),
        ("2023-11-16 18:15:46,0,44\n", "line 2 of .* has 0 and 44 tokens; allowed: from 1 and from 0"),
        ("2023-11-16 18:15:46,1,99999999999\n", "line 2 of .* and 99999999999 tokens; .* to 2147483647"),
        (
            "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n",
            "line 3 of .* has timestamp -1000; allowed: from 0, that of the line above",
        ),
    ],
)
def test_a_line_of_no_azure_trace_is_refused_by_its_number(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + lines)
    with pytest.raises(InvalidConfigError, match=said):
        read_trace(path)


def test_an_empty_trace_has_no_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.touch()
    assert read_trace(path) == []
