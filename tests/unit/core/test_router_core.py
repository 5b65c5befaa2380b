"""What a router does across requests: acceptance, names, limits, several requests at once."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.block_hash import block_hashes, root_hash
from baton_core.errors import ErrorCode, IncompatibleWorkerError
from baton_core.finish import FinishReason
from baton_core.placement import SplitMode
from baton_core.router_core import RouterConfig, RouterCore
from baton_core.router_events import ClientGone, FailRequest, FinishRequest, Submit, WorkerJoined, WorkerLeft
from baton_core.router_messages import CacheDelta, Generate, Prefill
from tests.builders import BLOCK_SIZE, make_identity, make_request, make_worker_info
from tests.unit.core.routers import Client, batch, first_token, refused, tokens


def workers_of(sent: list[tuple[str, Any]]) -> list[str]:
    return [worker_id for worker_id, _ in sent]


@pytest.mark.parametrize("worker_ids", [(), ("p",)])
def test_without_a_decode_worker_a_request_fails_at_once(worker_ids: tuple[str, ...]) -> None:
    client = Client(*worker_ids)
    client.submit()
    assert client.code is ErrorCode.UNAVAILABLE


def test_a_name_in_use_is_refused_and_the_first_request_goes_on() -> None:
    client = Client("p", "d")
    client.submit()
    assert client.submit() == []
    assert client.code is ErrorCode.INVALID_REQUEST
    assert client.core.num_requests == 1


def test_a_name_is_free_again_after_the_end() -> None:
    client = Client("p", "d")
    client.submit()
    client.feed(ClientGone(request_id="r"))
    assert workers_of(client.submit()) == ["p", "d"]


def test_a_router_accepts_so_many_requests_at_a_time() -> None:
    core = RouterCore(RouterConfig(max_num_requests=1))
    core.on_event(0.0, WorkerJoined(info=make_worker_info("m")))
    core.on_event(0.0, Submit(spec=make_request("a"), timeout_s=10.0))
    (effect,) = core.on_event(0.0, Submit(spec=make_request("b"), timeout_s=10.0))
    assert isinstance(effect, FailRequest)
    assert (effect.request_id, effect.code) == ("b", ErrorCode.OVERLOADED)


def test_an_incompatible_worker_does_not_join() -> None:
    client = Client("m", split=SplitMode.NEVER)
    stranger = make_worker_info("n", identity=make_identity(model="other"))
    with pytest.raises(IncompatibleWorkerError, match="model is 'other'"):
        client.feed(WorkerJoined(info=stranger))
    client.submit()
    assert workers_of(client.sent) == ["m"]


def test_requests_spread_over_the_decode_workers() -> None:
    client = Client("d", "d2", split=SplitMode.NEVER)
    for number in range(4):
        client.submit(f"r{number}", first=100 * number)
    assert workers_of(client.sent) == ["d", "d2", "d", "d2"]


def test_a_request_follows_its_prefix() -> None:
    client = Client("d", "d2", split=SplitMode.NEVER)
    spec = make_request()
    hashes = block_hashes(root_hash(make_identity()), spec.prompt_token_ids, BLOCK_SIZE)
    client.says("d2", CacheDelta(stored=tuple(hashes)))
    assert client.submit() == [("d2", Generate(spec=spec))]


def test_a_lost_worker_ends_only_the_requests_it_had() -> None:
    client = Client("d", "d2", split=SplitMode.NEVER)
    client.submit("a")
    client.submit("b")
    client.feed(WorkerLeft(worker_id="d", reason="no heartbeat for 1.5 s"))
    assert client.terminal == FailRequest(
        request_id="a",
        code=ErrorCode.WORKER_LOST,
        message="worker d was lost: no heartbeat for 1.5 s",
    )
    client.says("d2", first_token("b", tokens("b", reason=FinishReason.STOP)))
    assert [end.request_id for end in client.ends] == ["a", "b"]
    assert isinstance(client.ends[1], FinishRequest)
    assert client.core.fleet.is_ledger_empty


def test_one_batch_may_end_several_requests() -> None:
    client = Client("d", split=SplitMode.NEVER)
    for name in "ab":
        client.submit(name)
        client.says("d", first_token(name))
    client.says("d", batch(tokens("a", reason=FinishReason.STOP), tokens("b", reason=FinishReason.LENGTH)))
    assert [end.request_id for end in client.ends] == ["a", "b"]
    assert client.core.next_deadline() is None


def test_waiting_requests_are_placed_in_order_when_a_worker_joins() -> None:
    client = Client("d", split=SplitMode.NEVER)
    for name in "ab":
        client.submit(name)
        client.says("d", refused(name))
    client.feed(WorkerJoined(info=make_worker_info("c")))
    assert [(worker_id, message.spec.request_id) for worker_id, message in client.sent[-2:]] == [
        ("d", "a\t1"),
        ("c", "b\t1"),
    ]


@pytest.mark.parametrize("event", [ClientGone(request_id="x"), WorkerLeft(worker_id="x", reason="")])
def test_strangers_change_nothing(event: Any) -> None:
    client = Client("p", "d")
    client.submit()
    assert client.feed(event) == []
    assert client.says("x", first_token("unknown")) == []
    assert client.says("p", batch(tokens("unknown"))) == []
    assert isinstance(client.sent[0][1], Prefill)
    assert (len(client.sent), client.ends) == (2, [])
