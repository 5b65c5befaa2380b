"""One request at the router: every way through, and exactly one terminal effect at its end."""

from __future__ import annotations

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.sessions.router_messages import (
    Cancel,
    Failed,
    FirstTokenOf,
    Generate,
    Prefill,
    Reserve,
    Start,
    Transferred,
)
from baton_router.core.flow.flow_state import FlowState
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_events import ClientGone, FinishRequest, RouterEvent, StopMatched, WorkerLeft
from tests.builders import make_request, make_source
from tests.unit.core.routers import FAR, Client, batch, client_in, first_token, refused, tokens

LIVE = [FlowState.WAITING, FlowState.LOCAL, FlowState.SPLIT, FlowState.DECODING, FlowState.AWAITING_DECODE]
STOP = FinishReason.STOP
CANCEL = Cancel(request_id="r")


def start(request_id: str = "r", **first_tokens: int) -> Start:
    named = tuple(FirstTokenOf(index=int(name[1:]), token_id=token) for name, token in first_tokens.items())
    return Start(request_id=request_id, first_tokens=named)


# --- the way it should go ---


def test_a_split_request_prefills_and_reserves_at_once() -> None:
    sent = Client("p", "d").submit()
    spec = make_request()
    assert sent == [("p", Prefill(spec=spec)), ("d", Reserve(spec=spec, source=make_source("p")))]


def test_the_first_token_goes_to_the_client_and_starts_the_decode_worker() -> None:
    client = client_in(FlowState.SPLIT)
    assert client.says("p", first_token()) == [("d", start(i0=5))]
    assert client.emitted == [(0, (5,))]


def test_a_split_request_ends_with_its_last_token() -> None:
    client = client_in(FlowState.DECODING)
    moved = Transferred(request_id="r", num_blocks=2, num_bytes=99, transfer_s=0.125)
    client.says("d", moved, now=1.0)
    client.says("d", batch(tokens("r")), now=1.0)
    assert client.says("d", batch(tokens("r", 0, 7, reason=STOP)), now=3.0) == [("d", CANCEL), ("p", CANCEL)]
    assert client.emitted == [(0, (5,)), (0, (6,)), (0, (7,))]
    end = client.finished
    assert (end.num_prompt_tokens, end.num_output_tokens, end.num_cached_tokens) == (8, 3, 4)
    times = end.timings
    assert (times.queue_s, times.prefill_s, times.transfer_s, times.total_s) == (0.5, 0.25, 0.125, 3.0)
    assert (times.prefill_worker, times.decode_worker, times.transferred_bytes) == ("p", "d", 99)
    assert times.per_token_s == 1.5


def test_a_local_request_needs_one_worker() -> None:
    client = Client("p", "d", split=SplitMode.NEVER)
    assert client.submit() == [("d", Generate(spec=make_request()))]
    assert client.says("d", first_token()) == []
    assert client.says("d", batch(tokens("r", reason=STOP))) == [("d", CANCEL)]
    assert isinstance(client.terminal, FinishRequest)


def test_a_first_token_that_ends_the_request_starts_nobody() -> None:
    client = client_in(FlowState.SPLIT)
    last = tokens("r", 0, 5, reason=STOP)
    assert client.says("p", first_token("r", last)) == [("d", CANCEL), ("p", CANCEL)]
    end = client.finished
    assert end.timings.decode_worker == ""


def test_only_sequences_that_go_on_are_started() -> None:
    client = Client("p", "d")
    client.submit(n=3)
    outputs = (tokens("r", 0, 5), tokens("r", 1, 6, reason=STOP), tokens("r", 2, 7))
    assert client.says("p", first_token("r", *outputs)) == [("d", start(i0=5, i2=7))]


# --- endings, in every state ---


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize(
    ("event", "now", "codes"),
    [
        (ClientGone(request_id="r"), 1.0, dict.fromkeys(LIVE, ErrorCode.CANCELLED)),
        (WorkerLeft(worker_id="d", reason="it is silent"), 1.0, {}),
        (
            None,
            FAR,
            {
                FlowState.WAITING: ErrorCode.OVERLOADED,
                FlowState.LOCAL: ErrorCode.DEADLINE_EXCEEDED,
                FlowState.SPLIT: ErrorCode.DEADLINE_EXCEEDED,
                FlowState.DECODING: ErrorCode.DEADLINE_EXCEEDED,
                FlowState.AWAITING_DECODE: ErrorCode.DEADLINE_EXCEEDED,
            },
        ),
    ],
    ids=["client gone", "decode worker lost", "deadline"],
)
def test_what_ends_a_request_in_each_state(
    state: FlowState, event: RouterEvent | None, now: float, codes: dict[FlowState, ErrorCode]
) -> None:
    client = client_in(state)
    sent = client.feed(event, now=now) if event else client.wait(now)
    if state in codes:
        assert client.code is codes[state]
        assert {message for _, message in sent} <= {CANCEL}
        assert client.core.num_requests == 0
        assert client.core.fleet.has_no_reservations
        client.feed(ClientGone(request_id="r"), now=FAR)
        client.wait(FAR)
        assert len(client.ends) == 1
    else:
        assert not client.ends


@pytest.mark.parametrize("state", [FlowState.SPLIT, FlowState.DECODING, FlowState.AWAITING_DECODE])
def test_a_client_that_leaves_cancels_both_legs(state: FlowState) -> None:
    client = client_in(state)
    assert client.feed(ClientGone(request_id="r")) == [("d", CANCEL), ("p", CANCEL)]


@pytest.mark.parametrize(
    ("state", "worker_id", "is_over"),
    [
        (FlowState.LOCAL, "d", True),
        (FlowState.SPLIT, "p", True),
        (FlowState.SPLIT, "d", True),
        (FlowState.DECODING, "d", True),
        (FlowState.DECODING, "p", False),
        (FlowState.AWAITING_DECODE, "d", False),
    ],
)
def test_a_failure_counts_while_the_request_depends_on_that_worker(
    state: FlowState, worker_id: str, is_over: bool
) -> None:
    client = client_in(state)
    failed = Failed(request_id="r", code=ErrorCode.INTERNAL, message="the step failed")
    client.says(worker_id, failed)
    assert bool(client.ends) is is_over
    if is_over:
        assert client.code is ErrorCode.INTERNAL


@pytest.mark.parametrize("worker_id", ["p", "d"])
def test_a_request_that_one_leg_finds_invalid_is_cancelled_at_the_other(worker_id: str) -> None:
    client = client_in(FlowState.SPLIT)
    sent = client.says(worker_id, refused(code=ErrorCode.INVALID_REQUEST))
    assert client.code is ErrorCode.INVALID_REQUEST
    assert sent == [("d", CANCEL), ("p", CANCEL)]


def test_deadlines_name_what_was_waited_for() -> None:
    client = client_in(FlowState.WAITING)
    assert client.core.next_deadline() == 30.0
    client.wait(30.0)
    assert client.ends[0].message == "waited 30.0 s for a worker: every decode worker is full"  # type: ignore[union-attr]
    client = client_in(FlowState.SPLIT)
    client.wait(100.0)
    assert client.ends[0].message == "not finished within 100 s, last in state split"  # type: ignore[union-attr]


# --- refusals before the first token ---


def test_a_refusing_prefill_worker_is_replaced_under_a_new_name() -> None:
    client = Client("p", "p2", "d")
    client.submit()
    sent = client.says("p", refused())
    spec = make_request("r\t1")
    assert sent == [
        ("d", CANCEL),
        ("p", CANCEL),
        ("p2", Prefill(spec=spec)),
        ("d", Reserve(spec=spec, source=make_source("p2"))),
    ]


def test_a_refusing_decode_worker_is_replaced_while_the_prompt_is_computed() -> None:
    client = Client("p", "d2", "d")
    client.submit()
    assert client.says("d2", refused()) == [("d", Reserve(spec=make_request(), source=make_source("p")))]
    assert client.says("p", first_token()) == [("d", start(i0=5))]


def test_without_another_decode_worker_the_prefill_is_cancelled_and_the_request_waits() -> None:
    client = client_in(FlowState.SPLIT)
    assert client.says("d", refused()) == [("d", CANCEL), ("p", CANCEL)]
    assert client.core.fleet.has_no_reservations
    sent = client.heartbeat("d", now=1.0)
    assert [(worker_id, type(message)) for worker_id, message in sent] == [("p", Prefill), ("d", Reserve)]
    assert sent[0][1].spec.request_id == "r\t1"


def test_messages_of_an_earlier_placement_find_nobody() -> None:
    client = Client("p", "p2", "d")
    client.submit()
    client.says("p", refused())
    assert client.says("p2", first_token("r")) == []
    assert client.emitted == []
    assert client.says("p2", first_token("r\t1")) == [("d", start("r\t1", i0=5))]


def test_a_request_that_is_refused_at_every_heartbeat_still_ends_in_thirty_seconds() -> None:
    client = client_in(FlowState.WAITING)
    for tick in range(1, 80):
        now = tick / 2
        client.wait(now)
        for _, message in client.heartbeat("d", now=now):
            if isinstance(message, Reserve):
                client.says("d", refused(message.spec.request_id), now=now)
    assert client.code is ErrorCode.OVERLOADED
    assert client.terminal.message == "waited 30.0 s for a worker: every decode worker is full"  # type: ignore[union-attr]


def test_the_queue_lasts_until_the_placement_that_was_taken() -> None:
    client = client_in(FlowState.WAITING)
    client.heartbeat("d", now=4.0)
    client.says("p", first_token("r\t1", tokens("r\t1", reason=STOP)), now=5.0)
    end = client.finished
    assert (end.timings.queue_s, end.timings.first_token_s) == (4.5, 5.0)


# --- refusals after the first token ---


def test_a_decode_worker_that_refuses_after_the_first_token_is_replaced() -> None:
    client = Client("p", "d2", "d")
    client.submit()
    client.says("p", first_token())
    assert client.says("d2", refused()) == [
        ("d", Reserve(spec=make_request(), source=make_source("p"))),
        ("d", start(i0=5)),
    ]
    assert client.says("d2", batch(tokens("r", 0, 9))) == []
    client.says("d", batch(tokens("r", reason=STOP)))
    assert client.emitted == [(0, (5,)), (0, (6,))]
    assert isinstance(client.terminal, FinishRequest)


def test_a_request_awaiting_decode_goes_to_the_first_worker_that_has_room() -> None:
    client = client_in(FlowState.AWAITING_DECODE)
    assert [worker_id for worker_id, _ in client.join("d2", now=3.0)] == ["d2", "d2"]
    sent = client.says("d2", refused(), now=4.0)
    assert [(worker_id, type(message)) for worker_id, message in sent] == [("d", Reserve), ("d", Start)]
    client.says("d", Transferred(request_id="r", num_blocks=2, num_bytes=9, transfer_s=1.0), now=8.0)
    client.says("d", batch(tokens("r", reason=STOP)), now=9.0)
    end = client.finished
    assert (end.timings.first_token_s, end.timings.decode_worker) == (0.0, "d")


def test_a_request_awaiting_decode_stays_where_it_was_computed_once_nobody_else_decodes() -> None:
    client = Client("m", "d", split=SplitMode.ALWAYS)
    client.submit()
    client.says("m", first_token())
    assert client.says("d", refused()) == []
    sent = client.heartbeat("d", is_draining=True)
    assert sent == [("m", Reserve(spec=make_request(), source=make_source("m"))), ("m", start(i0=5))]
    client.says("m", batch(tokens("r", reason=STOP)))
    end = client.finished
    assert (end.timings.prefill_worker, end.timings.decode_worker) == ("m", "m")


def test_blocks_that_nobody_takes_in_fifteen_seconds_are_computed_again_where_there_is_room() -> None:
    client = client_in(FlowState.AWAITING_DECODE)
    sent = []
    for tick in range(1, 80):
        now = tick / 2
        sent += client.wait(now)
        sent += (offered := client.heartbeat("d", now=now))
        if offered:
            client.says("d", refused(), now=now)
    assert not client.ends
    assert ("p", CANCEL) in sent, "the prefill worker may forget the blocks"
    assert any(isinstance(message, Prefill) and message.spec.resumed for _, message in sent)


def test_blocks_that_are_computed_again_are_held_as_long_as_the_first_ones() -> None:
    client = client_in(FlowState.AWAITING_DECODE)
    client.wait(15.0)
    client.heartbeat("d", now=16.0)
    client.says("p", first_token("r\t1", tokens("r\t1", 0, 6)), now=17.0)
    client.says("d", refused("r\t1"), now=18.0)
    assert client.core.next_deadline() == 33.0


def test_reservations_survive_a_refusing_worker_that_leaves_and_returns() -> None:
    client = client_in(FlowState.AWAITING_DECODE)
    client.feed(WorkerLeft(worker_id="d", reason="it restarts"))
    client.join("d")
    client.says("d", batch(tokens("r", reason=STOP)))
    assert isinstance(client.terminal, FinishRequest)
    assert client.core.fleet.has_no_reservations


def test_a_lost_prefill_worker_does_not_matter_once_its_token_is_there() -> None:
    client = client_in(FlowState.DECODING)
    client.feed(WorkerLeft(worker_id="p", reason="it is silent"))
    client.says("d", batch(tokens("r", reason=STOP)))
    assert isinstance(client.terminal, FinishRequest)


# --- stop strings ---


def test_a_stop_string_ends_one_sequence_of_several() -> None:
    client = Client("p", "d")
    client.submit(n=2)
    client.says("p", first_token("r", tokens("r", 0), tokens("r", 1)))
    stop = StopMatched(request_id="r", index=0)
    assert client.feed(stop) == [("d", Cancel(request_id="r", indices=(0,)))]
    assert client.feed(stop) == []
    client.says("d", batch(tokens("r", 0, 7), tokens("r", 1, 8)))
    assert client.emitted == [(0, (6,)), (1, (6,)), (1, (8,))]
    sent = client.feed(StopMatched(request_id="r", index=1))
    assert sent == [("d", CANCEL), ("p", CANCEL)]
    end = client.finished
    assert end.num_output_tokens == 3


def test_a_stop_string_can_end_a_request_awaiting_decode() -> None:
    client = client_in(FlowState.AWAITING_DECODE)
    client.feed(StopMatched(request_id="r", index=0))
    assert isinstance(client.terminal, FinishRequest)


def test_a_sequence_that_was_stopped_is_not_started_elsewhere() -> None:
    client = Client("p", "d")
    client.submit(n=2)
    client.says("p", first_token("r", tokens("r", 0), tokens("r", 1)))
    client.says("d", refused())
    client.feed(StopMatched(request_id="r", index=0))
    assert client.heartbeat("d")[1] == ("d", start(i1=6))


@pytest.mark.parametrize(("router_name", "names"), [("a", ["r\ta", "r\ta.1"]), ("b", ["r\tb", "r\tb.1"])])
def test_each_router_has_names_of_its_own_for_what_it_asks_of_workers(
    router_name: str, names: list[str]
) -> None:
    client = Client("p", "p2", "d", router_name=router_name)
    first = client.submit()
    second = client.says("p", refused(names[0]))
    prefills = [message for _, message in first + second if isinstance(message, Prefill)]
    assert [prefill.spec.request_id for prefill in prefills] == names
