"""A router's core records a request in every way that it can go."""

from __future__ import annotations

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.requests.phases import Phase, PhaseName, PhaseReport, TokenSources
from baton_core.requests.request_context import RequestContext
from baton_router.core.flow.request_log import RequestLog
from baton_router.core.flow.request_record import MAX_PLACINGS, RequestRecord
from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.core.router_events import ClientGone, FailRequest, Submit, WorkerLeft
from tests.builders import make_request
from tests.unit.core.routers import Client, batch, first_token, refused, tokens


def record_of(client: Client, request_id: str = "r") -> RequestRecord:
    record = client.core.log.get(request_id)
    assert record is not None
    return record


def shape(record: RequestRecord) -> list[tuple[str, float, float]]:
    return [(phase.name.value, phase.start_s, phase.end_s) for phase in record.phases]


def test_a_finished_request_has_its_placement_its_first_token_and_its_end() -> None:
    client = Client("p", "d")
    client.submit(now=1.0)
    client.says("p", first_token(), now=2.0)
    client.says("d", batch(tokens("r", 0, 7, 8, reason=FinishReason.STOP)), now=3.0)
    record = record_of(client)
    assert shape(record) == [
        ("admit", 1.0, 1.0),
        ("place", 1.0, 1.0),
        ("first_token", 2.0, 2.0),
        ("finish", 3.0, 3.0),
    ]
    assert (record.started_s, record.first_token_s, record.ended_s) == (1.0, 2.0, 3.0)
    assert (record.num_output_tokens, record.num_cached_tokens, record.code) == (3, 4, None)


def test_a_record_begins_with_the_call_and_what_its_router_did_before() -> None:
    client = Client("p", "d")
    phases = (
        Phase(name=PhaseName.RECEIVE, start_s=1.0, end_s=1.5),
        Phase(name=PhaseName.TOKENIZE, start_s=1.5, end_s=2.0),
    )
    context = RequestContext(tenant="t", arrived_s=1.0)
    client.feed(Submit(spec=make_request("r"), timeout_s=9.0, context=context, phases=phases), now=2.0)
    record = record_of(client)
    assert record.started_s == 1.0
    assert record.context is context
    assert shape(record) == [
        ("receive", 1.0, 1.5),
        ("tokenize", 1.5, 2.0),
        ("admit", 2.0, 2.0),
        ("place", 2.0, 2.0),
    ]


def test_waiting_for_workers_is_told_for_each_placement() -> None:
    client = Client("p", "d")
    client.submit(now=1.0)
    client.says("d", refused(), now=2.0)
    client.heartbeat("d", now=4.0)
    assert shape(record_of(client)) == [
        ("admit", 1.0, 1.0),
        ("place", 1.0, 1.0),
        ("admit", 2.0, 4.0),
        ("place", 4.0, 4.0),
    ]


def test_a_decode_worker_found_after_the_first_token_is_a_placement() -> None:
    client = Client("p", "d")
    client.submit(now=1.0)
    client.says("p", first_token(), now=2.0)
    client.says("d", refused(), now=3.0)
    client.heartbeat("d", now=5.0)
    assert shape(record_of(client))[2:] == [
        ("first_token", 2.0, 2.0),
        ("admit", 3.0, 5.0),
        ("place", 5.0, 5.0),
    ]


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_a_failed_request_has_its_error(num_tokens: int) -> None:
    client = Client("p", "d")
    client.submit(now=1.0)
    if num_tokens:
        client.says("p", first_token(), now=2.0)
    client.feed(WorkerLeft(worker_id="d", reason="it went silent"), now=3.0)
    record = record_of(client)
    assert record.ended_s is None
    while (due := client.core.next_deadline()) is not None and due <= 18.0:
        client.wait(18.0)
    assert (record.code, record.ended_s) == (ErrorCode.WORKER_LOST, 18.0)
    assert record.num_output_tokens == num_tokens
    assert "it went silent" in record.message
    assert shape(record)[-1] == ("finish", 18.0, 18.0)


def test_a_request_cancelled_while_it_waits_has_its_wait() -> None:
    client = Client("p", "d")
    client.submit(now=1.0)
    client.says("d", refused(), now=2.0)
    client.feed(ClientGone(request_id="r"), now=6.0)
    record = record_of(client)
    assert shape(record)[-2:] == [("admit", 2.0, 6.0), ("finish", 6.0, 6.0)]
    assert record.code is ErrorCode.CANCELLED


def test_a_request_that_its_router_gave_up_has_the_error_that_its_client_heard() -> None:
    client = Client("p", "d")
    client.submit()
    client.feed(ClientGone(request_id="r", code=ErrorCode.OVERLOADED, message="reads too slowly"), now=2.0)
    record = record_of(client)
    assert (record.code, record.message) == (ErrorCode.OVERLOADED, "reads too slowly")


def test_a_request_that_is_refused_at_once_has_a_record() -> None:
    core = RouterCore(RouterConfig(max_num_requests=0))
    core.on_event(1.0, Submit(spec=make_request("r"), timeout_s=1.0))
    record = core.log.get("r")
    assert record is not None
    assert (record.code, record.ended_s) == (ErrorCode.OVERLOADED, 1.0)


def test_an_open_request_keeps_its_record_however_many_end_after_it() -> None:
    client = Client("p", "d")
    client.core.log = RequestLog(max_ended=2)
    client.submit("open")
    record = record_of(client, "open")
    for name in ("e1", "e2", "e3"):
        client.submit(name)
        client.feed(ClientGone(request_id=name))
    log = client.core.log
    assert record_of(client, "open") is record
    assert [one.request_id for one in log.recent()] == ["e3", "e2", "open"]
    client.feed(ClientGone(request_id="open"))
    assert [one.request_id for one in log.recent()] == ["e3", "open"]


def test_a_reused_name_is_not_forgotten_with_its_first_record() -> None:
    log = RequestLog(max_ended=1)
    core = RouterCore(RouterConfig(max_num_requests=0))
    core.log = log
    for name in ("r", "r", "other"):
        core.on_event(1.0, Submit(spec=make_request(name), timeout_s=1.0))
    assert [one.request_id for one in log.recent()] == ["other"]
    core.on_event(2.0, Submit(spec=make_request("other"), timeout_s=1.0))
    assert [one.request_id for one in log.recent()] == ["other"]


def test_a_second_request_of_the_same_name_does_not_touch_the_record_of_the_first() -> None:
    client = Client("p", "d")
    client.submit()
    record = record_of(client)
    client.submit()
    assert client.terminal == FailRequest(
        request_id="r",
        code=ErrorCode.ALREADY_EXISTS,
        message="request_id is 'r'; allowed: a name that no running request has",
    )
    assert record_of(client) is record
    assert record.ended_s is None


def test_placements_beyond_the_maximum_are_counted_only() -> None:
    client = Client("p", "d", queue_s=1e9)
    client.submit()
    for number in range(1, MAX_PLACINGS + 10):
        attempt_id = client.sent[-1][1].spec.request_id
        client.says("d", refused(attempt_id), now=number)
        client.heartbeat("d", now=number)
    record = record_of(client)
    assert record.num_placings == MAX_PLACINGS + 10
    assert [phase.name for phase in record.phases] == ["admit", "place"] * MAX_PLACINGS


def test_a_workers_part_is_added_after_the_end_on_the_routers_clock() -> None:
    client = Client("p", "d")
    client.submit()
    client.feed(ClientGone(request_id="r"), now=1.0)
    phase = Phase(name=PhaseName.QUEUE, start_s=100.0, end_s=101.0)
    report = PhaseReport(request_id="r", phases=(phase,), sources=TokenSources(num_computed=3), sent_s=102.0)
    client.says("p", report, now=2.0)
    (part,) = record_of(client).parts
    assert (part.worker_id, part.sources.num_computed) == ("p", 3)
    assert [(phase.start_s, phase.end_s) for phase in part.phases] == [(0.0, 1.0)]
