"""The policies that predict nothing: whom each takes, by itself and within a placement."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from baton_core.sessions.router_messages import Prefill
from baton_router.core.placement.placement import Placement
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.placement.routing_policies import Half, RoutingPolicy, rank
from tests.unit.core.placing import ask, choose, pair, view
from tests.unit.core.routers import Client

ALWAYS: dict[str, Any] = {"split": SplitMode.ALWAYS}
every_policy = pytest.mark.parametrize("policy", list(RoutingPolicy))


def test_round_robin_takes_each_in_turn_by_name() -> None:
    options: dict[str, Any] = {"policy": RoutingPolicy.ROUND_ROBIN, **ALWAYS}
    names = ("p2", "p1", "d1", "d3", view("d2", num_sequences=99))
    turns = [pair(*names, turn=turn, split_turn=turn, **options) for turn in range(6)]
    assert [decode for _, decode in turns] == ["d1", "d2", "d3", "d1", "d2", "d3"]
    assert [prefill for prefill, _ in turns] == ["p1", "p2"] * 3


def test_round_robin_gives_every_prefill_worker_its_turn_where_split_requests_alternate_with_others() -> None:
    client = Client("p1", "p2", "d", policy=RoutingPolicy.ROUND_ROBIN)
    for number in range(4):
        client.submit(f"long{number}", first=number)
        client.submit(f"short{number}", prompt=1)
    prefills = [worker for worker, message in client.sent if isinstance(message, Prefill)]
    assert prefills == ["p1", "p2"] * 2


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ({"num_sequences": 3}, {"num_sequences": 2}, "d2"),
        ({"num_sequences": 2}, {"num_sequences": 2}, "d1"),
        ({"num_sequences": 2, "num_queued_tokens": 1}, {"num_sequences": 2}, "d2"),
        ({"num_sequences": 0}, {"num_sequences": 9, "num_cached_tokens": 600}, "d1"),
    ],
)
def test_least_loaded_decodes_where_the_fewest_sequences_are(
    first: dict[str, Any], second: dict[str, Any], chosen: str
) -> None:
    options: dict[str, Any] = {"policy": RoutingPolicy.LEAST_LOADED, **ALWAYS}
    assert pair("p", view("d1", **first), view("d2", **second), **options) == ("p", chosen)


def test_least_loaded_prefills_where_the_fewest_tokens_are_queued() -> None:
    workers = ("d", view("p1", num_queued_tokens=9), view("p2", num_queued_tokens=8, num_sequences=3))
    assert pair(*workers, policy=RoutingPolicy.LEAST_LOADED, **ALWAYS) == ("p2", "d")


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ({"num_cached_tokens": 10}, {"num_sequences": 9, "num_cached_tokens": 20}, "d2"),
        ({"num_sequences": 1}, {}, "d2"),
        ({}, {}, "d1"),
    ],
)
def test_prefix_takes_the_longest_then_the_least_loaded(
    first: dict[str, Any], second: dict[str, Any], chosen: str
) -> None:
    options: dict[str, Any] = {"policy": RoutingPolicy.PREFIX, **ALWAYS}
    assert pair("p", view("d1", **first), view("d2", **second), **options) == ("p", chosen)


def test_power_of_two_takes_the_less_loaded_of_two_that_the_name_draws() -> None:
    views = [view(f"d{number}", num_sequences=number) for number in range(5)]
    drawn: Counter[tuple[str, str]] = Counter()
    for number in range(400):
        request = ask(request_id=f"r{number}")
        best, other = rank(RoutingPolicy.POWER_OF_TWO, request, Half.DECODE, views)
        assert best.num_sequences < other.num_sequences
        assert rank(RoutingPolicy.POWER_OF_TWO, request, Half.DECODE, views[::-1]) == [best, other]
        drawn[best.worker_id, other.worker_id] += 1
    assert len(drawn) == 10
    assert min(drawn.values()) > 15


def test_power_of_two_with_one_worker_takes_it() -> None:
    assert pair("p", "d", policy=RoutingPolicy.POWER_OF_TWO, **ALWAYS) == ("p", "d")


@pytest.mark.parametrize("key", ["session_id", "prompt_key"])
def test_consistent_hash_keeps_a_session_or_a_prompt_where_it_was(key: str) -> None:
    names = [f"m{number}" for number in range(6)]
    options: dict[str, Any] = {"policy": RoutingPolicy.CONSISTENT_HASH}
    moved = 0
    for value in map(str, range(60)):
        before = pair(*names, **{key: value}, **options)[1]
        assert pair(*names, **{key: value}, turn=5, request_id="x", **options)[1] == before
        after = pair(*names, "m9", **{key: value}, **options)[1]
        assert after in (before, "m9")
        moved += after == "m9"
    assert 1 < moved < 25


@every_policy
@pytest.mark.parametrize("size", [2, 8, 9])
def test_racks_that_do_not_reach_each_other_split_within(policy: RoutingPolicy, size: int) -> None:
    racks = {rack: frozenset(f"p{rack}{number}" for number in range(size)) for rack in "ab"}
    workers = [
        view(name, num_queued_tokens=500 * (name in racks["a"])) for name in sorted(racks["a"] | racks["b"])
    ]
    for rack, other in ("ab", "ba"):
        workers += [
            view(f"d{rack}{number}", num_sequences=5 * (rack == "b"), broken_sources=racks[other])
            for number in range(size)
        ]
    outcome, decision = choose(*workers, split=SplitMode.ALWAYS, policy=policy)
    assert isinstance(outcome, Placement), outcome
    assert outcome.prefill[1] == outcome.decode[1]
    assert decision.num_candidates == 2 * size * size


@every_policy
def test_a_decode_worker_that_gets_nobodys_blocks_keeps_no_other_from_the_request(
    policy: RoutingPolicy,
) -> None:
    broken = view("d1", num_cached_tokens=900, broken_sources=frozenset({"p"}))
    for turn in range(2):
        options: dict[str, Any] = {"split": SplitMode.ALWAYS, "policy": policy, "turn": turn}
        assert pair("p", broken, view("d2", num_sequences=9), **options) == ("p", "d2")
