"""Workers that hold sequences of different lengths: none gets what it cannot hold, and none cuts a stream."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.sessions.router_messages import Cancel, Generate, OutputSoFar
from baton_core.sessions.worker_info import Role, WorkerLoad
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_events import FailRequest, FinishRequest, StopMatched, WorkerLeft
from tests.builders import BLOCK_SIZE, make_request
from tests.unit.core.routers import Client, batch, first_token, tokens
from tests.unit.core.test_fleet import make_fleet, make_worker_info

LENGTH = FinishReason.LENGTH
SECOND = "r\t1"


def alone(**limits: int) -> Client:
    """Workers that take whole requests, by name, with the tokens of a sequence that each holds."""
    client = Client(split=SplitMode.NEVER)
    for name, limit in limits.items():
        client.join(name, max_model_len=limit)
    return client


def lose(client: Client, worker_id: str, *, now: float = 1.0) -> list[tuple[str, Any]]:
    return client.feed(WorkerLeft(worker_id=worker_id, reason="it is silent"), now=now)


def generated(sent: list[tuple[str, Any]]) -> list[str]:
    return [worker_id for worker_id, message in sent if isinstance(message, Generate)]


def test_a_request_goes_to_a_worker_that_holds_its_prompt_and_output() -> None:
    client = alone(d=15, d2=16, d3=15)
    assert generated(client.submit(prompt=8, max_tokens=8)) == ["d2"]


def test_a_stream_moves_to_no_worker_that_does_not_hold_what_it_has() -> None:
    client = alone(d=64)
    client.submit(prompt=8, max_tokens=24)
    client.says("d", first_token())
    client.says("d", batch(tokens("r", 0, *range(6, 16))))
    client.join("d2", max_model_len=20)
    assert generated(lose(client, "d")) == []
    assert generated(client.join("d3", max_model_len=64)) == ["d3"]


def test_a_stream_that_fits_no_worker_any_more_says_so() -> None:
    client = alone(d=64)
    client.submit(prompt=8, max_tokens=24)
    client.says("d", first_token())
    client.join("d2", max_model_len=20)
    lose(client, "d")
    client.wait(16.0)
    end = client.terminal
    assert isinstance(end, FailRequest)
    assert end.code is ErrorCode.WORKER_LOST
    assert "needs 32 tokens; the largest max_model_len of a decode worker is 20" in end.message


def test_what_no_worker_holds_is_refused_before_any_work() -> None:
    client = alone(d=15)
    assert client.submit(prompt=8, max_tokens=8) == []
    assert client.code is ErrorCode.UNAVAILABLE
    assert isinstance(client.terminal, FailRequest)
    assert client.terminal.message == (
        "the request needs 16 tokens; the largest max_model_len of a decode worker is 15"
    )


def test_a_sequence_that_outgrows_its_worker_goes_on_at_a_larger_one() -> None:
    client = alone(d=140)
    client.submit(prompt=8, max_tokens=500)
    assert client.sent == [("d", Generate(spec=make_request(max_tokens=500)))]
    client.join("d2", max_model_len=1000)
    client.says("d", first_token())
    sent = client.says("d", batch(tokens("r", 0, *range(131), reason=LENGTH)))
    (command,) = [message for worker_id, message in sent if worker_id == "d2"]
    assert isinstance(command, Generate)
    assert command.spec.resumed == (OutputSoFar(index=0, token_ids=(5, *range(131))),)
    assert ("d", Cancel(request_id="r")) in sent
    assert not client.ends
    client.says("d2", batch(tokens(SECOND, 0, 7, reason=FinishReason.STOP)))
    assert client.finished.num_output_tokens == 133
    assert [token for _, ids in client.emitted for token in ids] == [5, *range(131), 7]
    assert client.core.fleet.has_no_reservations


def test_the_sequences_of_a_request_move_together_when_one_outgrows_their_worker() -> None:
    client = alone(d=140)
    client.submit(prompt=8, max_tokens=500, n=2)
    client.join("d2", max_model_len=1000)
    client.says("d", first_token("r", tokens("r", 0, 5), tokens("r", 1, 6)))
    sent = client.says("d", batch(tokens("r", 1, *range(131), reason=LENGTH), tokens("r", 0, 9)))
    (spec,) = [message.spec for worker_id, message in sent if worker_id == "d2"]
    assert [len(one.token_ids) for one in spec.resumed] == [1, 132]
    client.says("d2", batch(tokens(SECOND, 0, 9, reason=FinishReason.STOP)))
    client.says("d2", batch(tokens(SECOND, 1, 9, reason=FinishReason.STOP)))
    assert isinstance(client.terminal, FinishRequest)


def test_a_sequence_that_its_text_has_ended_moves_nothing() -> None:
    client = alone(d=140)
    client.submit(prompt=8, max_tokens=500, n=2)
    client.join("d2", max_model_len=1000)
    client.says("d", first_token("r", tokens("r", 0, 5), tokens("r", 1, 6)))
    client.feed(StopMatched(request_id="r", index=1))
    assert client.says("d", batch(tokens("r", 1, *range(131), reason=LENGTH))) == []
    assert not client.ends


def test_all_tokens_that_a_request_may_have_are_its_end_by_length() -> None:
    client = alone(d=16)
    client.submit(prompt=8, max_tokens=8)
    client.says("d", first_token())
    client.says("d", batch(tokens("r", 0, *range(7), reason=LENGTH)))
    assert isinstance(client.terminal, FinishRequest)


@pytest.mark.parametrize(
    ("workers", "limit"),
    [
        ([], 0),
        ([("p", Role.PREFILL, 900)], 900),
        ([("p", Role.PREFILL, 900), ("d", Role.DECODE, 300), ("m", Role.MIXED, 400)], 400),
    ],
)
def test_the_longest_sequence_is_that_of_the_largest_worker_that_decodes(
    workers: list[tuple[str, Role, int]], limit: int
) -> None:
    fleet = make_fleet()
    for name, role, max_model_len in workers:
        fleet.join(make_worker_info(name, role, max_model_len=max_model_len))
    assert fleet.max_model_len == limit


def test_a_worker_holds_no_longer_sequence_than_its_pool() -> None:
    fleet = make_fleet("w", max_model_len=100, num_blocks=10)
    assert fleet.max_model_len == 10 * BLOCK_SIZE
    assert [view.max_model_len for view in fleet.views(8, [])] == [10 * BLOCK_SIZE]


def test_a_request_waits_while_the_only_worker_pauses_because_of_a_fault() -> None:
    client = alone(d=64)
    client.heartbeat("d", fault="steps fail in a row")
    assert client.submit() == []
    assert not client.ends
    assert generated(client.heartbeat("d", now=10.0)) == ["d"]


def test_a_moved_request_waits_for_a_faulty_worker_no_longer_than_for_an_absent_one() -> None:
    client = alone(d=64)
    client.submit()
    client.says("d", first_token())
    client.join("d2")
    client.heartbeat("d2", fault="steps fail in a row")
    lose(client, "d")
    for tick in range(2, 16):
        client.heartbeat("d2", now=float(tick), fault="steps fail in a row")
    assert not client.ends
    client.wait(16.0)
    assert client.code is ErrorCode.WORKER_LOST


def test_a_faulty_worker_takes_nothing() -> None:
    assert not WorkerLoad(fault="x").is_taking
