"""The queue of a router has no more requests than allowed, whichever way they come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_core.errors import ErrorCode
from baton_core.fair_queue import FairQueue
from baton_router.core.router_events import HoldDispatch
from tests.unit.core.routers import refused
from tests.unit.core.test_admission import make_client, names, of, refusal, submit_call


def test_a_request_that_its_worker_refused_makes_the_queue_no_longer() -> None:
    client = make_client("m", max_queued_requests=2)
    for number, name in enumerate("abc"):
        client.submit(name, now=float(number))
    client.says("m", refused("a"), now=3.0)
    assert (refusal(client).request_id, client.core.admission.num_waiting) == ("c", 2)
    assert names(client.heartbeat("m", now=4.0)) == ["a\t1"]


def test_a_call_that_the_queue_has_no_room_for_is_refused_before_any_of_its_prompts() -> None:
    client = make_client("m", max_queued_requests=3)
    for name in ("a1", "a2", "a3"):
        client.submit(name, context=of("a"))
    submit_call(client, "b", 4, tenant="b")
    text = "2 requests wait for a worker; with the 4 of this call: over 3, the maximum"
    assert (refusal(client).request_id, refusal(client).message) == ("b0", text)
    assert [end.request_id for end in client.ends] == ["b0"]
    submit_call(client, "c", 1, tenant="c")
    assert client.core.admission.num_waiting == 3
    submit_call(client, "d", 2, tenant="d")
    assert [end.request_id for end in client.ends] == ["b0", "d0"], "a has no more to give than one"


def test_a_call_that_waits_for_nobody_is_not_refused_for_its_size() -> None:
    client = make_client("m", max_num_seqs=9, max_queued_requests=1)
    submit_call(client, "a", 5)
    assert not client.ends
    client.feed(HoldDispatch(why="an operator paused it"))
    submit_call(client, "b", 2)
    assert refusal(client).message.startswith("0 requests wait for a worker; with the 2 of this call")


def test_a_call_that_no_worker_could_take_is_not_refused_for_its_size() -> None:
    client = make_client(max_queued_requests=1)
    submit_call(client, "a", 5)
    assert refusal(client, ErrorCode.UNAVAILABLE).request_id == "a0"


def test_a_call_that_the_router_has_no_room_for_is_refused_before_any_of_its_prompts() -> None:
    client = make_client("m", max_num_seqs=9)
    client.core._config = replace(client.core._config, max_num_requests=4)
    client.submit("a")
    submit_call(client, "b", 4)
    text = "the router has 1 requests; with the 4 of this call: over 4, its maximum"
    assert (refusal(client).request_id, refusal(client).message) == ("b0", text)
    submit_call(client, "c", 3)
    assert len(client.ends) == 1
    client.submit("d")
    assert refusal(client).message == "the router has 4 requests, its maximum"


@pytest.mark.parametrize(("priority", "length"), [(0, 3 + 3 + 2), (-9, 2 + 2 + 2)])
def test_later_requests_of_its_own_key_give_way_to_an_urgent_call(priority: int, length: int) -> None:
    queue = FairQueue(10.0)
    for name, num_requests in (("a", 1), ("b", 9), ("c", 2)):
        for number in range(num_requests):
            queue.join(f"{name}{number}", tenant=name, num_tokens=1, since_s=0.0)
    assert queue.length_with("a", 2, priority=priority, since_s=1.0) == length


def test_a_call_of_the_same_time_comes_after_the_one_that_joined_last() -> None:
    queue = FairQueue(10.0)
    queue.join("a0", tenant="a", num_tokens=1, since_s=1.0)
    assert queue.length_with("a", 2, priority=0, since_s=1.0) == 3
