"""A router across requests: acceptance, names, limits, several requests at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from baton_core.blocks.block_hash import block_hashes, root_hash
from baton_core.errors import ErrorCode, IncompatibleWorkerError
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.requests.finish import FinishReason
from baton_core.requests.request_context import RequestContext
from baton_core.sessions.control_messages import ControlResult
from baton_core.sessions.router_messages import Generate, OutputSoFar, Prefill
from baton_core.sessions.worker_info import WorkerLoad
from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_events import (
    ClientGone,
    FailRequest,
    FinishRequest,
    Submit,
    WorkerJoined,
    WorkerLeft,
    WorkerReported,
)
from tests.builders import BLOCK_SIZE, make_identity, make_request, make_worker_info
from tests.unit.core.routers import Client, batch, first_token, refused, tokens


def workers_of(sent: list[tuple[str, Any]]) -> list[str]:
    return [worker_id for worker_id, _ in sent]


@pytest.mark.parametrize("worker_ids", [(), ("p",)])
def test_without_a_decode_worker_a_request_fails_at_once(worker_ids: tuple[str, ...]) -> None:
    client = Client(*worker_ids)
    client.submit()
    assert client.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("load", [{"is_asleep": True}, {"is_draining": True}, None])
def test_what_no_worker_can_take_fails_at_once_even_where_others_wait(load: dict[str, Any] | None) -> None:
    client = Client("d", split=SplitMode.NEVER)
    client.submit()
    client.says("d", refused(), now=0.1)
    if load is None:
        client.feed(WorkerLeft(worker_id="d", reason="it is silent"), now=1.0)
    else:
        client.heartbeat("d", now=1.0, **load)
    client.submit("r2", now=2.0)
    assert client.code is ErrorCode.UNAVAILABLE
    assert client.core.admission.num_waiting == 1


def test_a_name_in_use_is_refused_and_the_first_request_goes_on() -> None:
    client = Client("p", "d")
    client.submit()
    assert client.submit() == []
    assert client.code is ErrorCode.ALREADY_EXISTS
    assert client.core.num_requests == 1


def test_a_name_is_free_again_after_the_end() -> None:
    client = Client("p", "d")
    client.submit()
    client.feed(ClientGone(request_id="r"))
    assert workers_of(client.submit()) == ["p", "d"]


def test_late_tokens_of_a_request_do_not_reach_one_that_takes_its_name() -> None:
    client = Client("m", split=SplitMode.NEVER)
    client.submit()
    client.says("m", first_token())
    client.feed(ClientGone(request_id="r"))
    received = (OutputSoFar(index=0, token_ids=(5,)),)
    ((_, generate),) = client.submit(resumed=received)
    client.says("m", batch(tokens("r", 0, 77)))
    client.says("m", batch(tokens(generate.spec.request_id, 0, 8)))
    assert client.emitted == [(0, (5,)), (0, (8,))]


def test_a_router_accepts_so_many_requests_at_a_time() -> None:
    core = RouterCore(RouterConfig(max_num_requests=1))
    core.on_event(0.0, WorkerJoined(info=make_worker_info("m")))
    core.on_event(0.0, Submit(spec=make_request("a"), timeout_s=10.0))
    (effect,) = core.on_event(0.0, Submit(spec=make_request("b"), timeout_s=10.0))
    assert isinstance(effect, FailRequest)
    assert (effect.request_id, effect.code) == ("b", ErrorCode.OVERLOADED)


def test_the_answer_to_an_operator_says_at_once_who_takes_requests() -> None:
    client = Client("p", "d", "d2")
    for worker_id in ("d", "d2"):
        client.says(worker_id, ControlResult(control_id=1, is_asleep=True))
    client.submit("early")
    assert client.code is ErrorCode.UNAVAILABLE
    assert client.core.fleet.is_ready is False
    client.says("d2", ControlResult(control_id=2))
    assert workers_of(client.submit("late")) == ["p", "d2"]


def test_who_refuses_because_it_sleeps_is_passed_over_and_waited_for_by_nobody() -> None:
    client = Client("m", split=SplitMode.NEVER)
    client.submit()
    client.says("m", refused(code=ErrorCode.UNAVAILABLE))
    assert client.core.num_requests == 1
    client.feed(WorkerReported(worker_id="m", load=WorkerLoad(num_available_blocks=16, is_asleep=True)))
    assert client.code is ErrorCode.UNAVAILABLE


def test_an_incompatible_worker_does_not_join() -> None:
    client = Client("m", split=SplitMode.NEVER)
    stranger = make_worker_info("n", identity=make_identity(weights="other"))
    with pytest.raises(IncompatibleWorkerError, match="weights is 'other'"):
        client.feed(WorkerJoined(info=stranger))
    client.submit()
    assert workers_of(client.sent) == ["m"]


def test_requests_spread_over_the_decode_workers() -> None:
    client = Client("d", "d2", split=SplitMode.NEVER)
    for number in range(4):
        client.submit(f"r{number}", first=100 * number)
    assert Counter(workers_of(client.sent)) == {"d": 2, "d2": 2}


def test_a_request_follows_its_prefix() -> None:
    client = Client("d", "d2", split=SplitMode.NEVER)
    spec = make_request()
    hashes = block_hashes(root_hash(make_identity()), spec.prompt_token_ids, BLOCK_SIZE)
    client.says("d2", CacheDelta(stored=tuple(hashes)))
    assert client.submit() == [("d2", Generate(spec=spec))]


def test_only_the_requests_of_a_lost_worker_move() -> None:
    client = Client("d", "d2", split=SplitMode.NEVER)
    client.submit("a")
    client.submit("b")
    sent = client.feed(WorkerLeft(worker_id="d", reason="no heartbeat for 1.5 s"))
    assert sent[-1] == ("d2", Generate(spec=make_request("a\t1")))
    for name in ("b", "a\t1"):
        client.says("d2", first_token(name, tokens(name, reason=FinishReason.STOP)))
    assert [end.request_id for end in client.ends] == ["b", "a"]
    assert all(isinstance(end, FinishRequest) for end in client.ends)
    assert client.core.fleet.has_no_reservations


def test_requests_of_lines_are_not_counted_among_those_of_others() -> None:
    client = Client("m", split=SplitMode.NEVER)
    line = RequestContext(is_batch_line=True)
    for name in ("l/0", "l/1"):
        client.submit(name, context=line)
    assert (client.core.num_requests, client.core.load.num_others) == (2, 0)
    client.submit("other")
    assert (client.core.load.num_others, client.core.load.num_prefilling) == (1, 3)
    for name in ("other", "l/0", "l/1"):
        client.feed(ClientGone(request_id=name))
    assert (client.core.num_requests, client.core.load.num_others) == (0, 0)


def test_one_batch_may_end_several_requests() -> None:
    client = Client("d", split=SplitMode.NEVER)
    for name in "ab":
        client.submit(name)
        client.says("d", first_token(name))
    client.says("d", batch(tokens("a", reason=FinishReason.STOP), tokens("b", reason=FinishReason.STOP)))
    assert [end.request_id for end in client.ends] == ["a", "b"]
    assert client.core.next_deadline() is None


def test_waiting_requests_are_placed_in_order_when_a_worker_joins() -> None:
    client = Client("d", split=SplitMode.NEVER)
    client.heartbeat("d", is_paused=True)
    assert client.submit("a") == client.submit("b") == []
    sent = client.feed(WorkerJoined(info=make_worker_info("c")))
    assert [message.spec.request_id for _, message in sent] == ["a", "b"]
    assert workers_of(sent) == ["c", "c"]


@pytest.mark.parametrize("event", [ClientGone(request_id="x"), WorkerLeft(worker_id="x", reason="")])
def test_strangers_change_nothing(event: Any) -> None:
    client = Client("p", "d")
    client.submit()
    assert client.feed(event) == []
    assert client.says("x", first_token("unknown")) == []
    assert client.says("p", batch(tokens("unknown"))) == []
    assert isinstance(client.sent[0][1], Prefill)
    assert (len(client.sent), client.ends) == (2, [])
