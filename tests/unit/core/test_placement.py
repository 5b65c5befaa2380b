"""Placement as a table: which workers a prompt may get, why none, and what is recorded of it."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.sessions.worker_info import Role
from baton_router.core.placement.eligibility import Unplaceable
from baton_router.core.placement.placement import Placement, place, place_decoder
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.placement.placement_record import MAX_CANDIDATES
from baton_router.core.placement.placement_snapshot import PlacementRequest, WorkerView
from baton_router.core.placement.routing_policies import RoutingPolicy
from tests.unit.core.placing import ask, choose, pair, view

SIMPLE = [policy for policy in RoutingPolicy if policy is not RoutingPolicy.COST]
ALWAYS = {"split": SplitMode.ALWAYS}
FAULTY, BROKEN = view("d", is_faulty=True), view("d", broken_sources=frozenset({"p"}))
every_policy = pytest.mark.parametrize("policy", list(RoutingPolicy))

# --- whether to split ---


@every_policy
@pytest.mark.parametrize(
    ("split", "prompt", "prefill"),
    [
        (SplitMode.AUTO, 255, "d"),
        (SplitMode.AUTO, 256, "p"),
        (SplitMode.ALWAYS, 1, "d"),
        (SplitMode.ALWAYS, 2, "p"),
        (SplitMode.NEVER, 100_000, "d"),
    ],
)
def test_the_mode_and_the_length_decide_whether_to_split(
    policy: RoutingPolicy, split: SplitMode, prompt: int, prefill: str
) -> None:
    busy = view("d", num_sequences=5)
    assert pair("p", busy, prompt=prompt, split=split, policy=policy) == (prefill, "d")


@every_policy
@pytest.mark.parametrize(
    ("num_cached", "split", "prefill"),
    [
        (740, SplitMode.AUTO, "p"),
        (750, SplitMode.AUTO, "d"),
        (998, SplitMode.ALWAYS, "p"),
        (999, SplitMode.ALWAYS, "d"),
        (1000, SplitMode.ALWAYS, "d"),
    ],
)
def test_only_tokens_the_decode_worker_lacks_count(
    policy: RoutingPolicy, num_cached: int, split: SplitMode, prefill: str
) -> None:
    decoder = view("d", num_cached_tokens=num_cached, num_sequences=5)
    assert pair("p", decoder, split=split, policy=policy) == (prefill, "d")


@every_policy
def test_without_a_prefill_worker_auto_stays_on_the_decode_worker(policy: RoutingPolicy) -> None:
    outcome, _ = choose("d", view("d2", num_sequences=9), policy=policy)
    assert isinstance(outcome, Placement)
    assert not outcome.is_split


@every_policy
def test_two_mixed_workers_can_split_between_them(policy: RoutingPolicy) -> None:
    assert set(pair("m1", "m2", split=SplitMode.ALWAYS, policy=policy)) == {"m1", "m2"}


def test_two_idle_mixed_workers_need_not_split() -> None:
    assert pair("m1", "m2") == ("m1", "m1")


def test_before_anything_is_learned_a_long_prompt_goes_to_the_worker_that_prefers_it() -> None:
    p, d = (WorkerView(worker_id=role, role=role, **IDLE) for role in (Role.PREFILL, Role.DECODE))
    for num_tokens in (256, 1000, 4000, 32_000):
        request = PlacementRequest(
            num_prompt_tokens=num_tokens,
            num_blocks=-(-num_tokens // 32),
            block_size=32,
            block_bytes=num_bytes_of_a_block(num_tokens),
        )
        outcome, _ = place(request, [p, d], PlacementConfig())
        assert isinstance(outcome, Placement)
        assert outcome.is_split, num_tokens


IDLE: dict[str, Any] = {
    "num_cached_tokens": 0,
    "num_queued_tokens": 0,
    "num_sequences": 0,
    "can_reserve": True,
}


def num_bytes_of_a_block(num_tokens: int) -> int:
    """Return the bytes of 32 tokens: half a billion parameters, 8 billion for longer prompts."""
    return 32 * (12_288 if num_tokens < 1000 else 131_072)


@every_policy
@pytest.mark.parametrize(
    ("split", "prompt", "worker"),
    [(SplitMode.AUTO, 1000, "p"), (SplitMode.ALWAYS, 2, "p"), (SplitMode.NEVER, 1000, "d")],
)
def test_a_request_of_one_token_that_would_be_split_runs_where_it_is_prefilled(
    policy: RoutingPolicy, split: SplitMode, prompt: int, worker: str
) -> None:
    busy, options = view("d", num_sequences=5), {"policy": policy, "split": split, "prompt": prompt}
    assert pair("p", busy, num_output_tokens=2, **options) == (worker, "d")
    assert pair("p", busy, num_output_tokens=1, **options) == (worker, worker)


# --- who may not take it ---


@every_policy
@pytest.mark.parametrize("why", [{"is_asleep": True}, {"is_draining": True}, {"is_paused": True}])
def test_a_worker_that_takes_nothing_is_passed_over(policy: RoutingPolicy, why: dict[str, Any]) -> None:
    options: dict[str, Any] = {"policy": policy, "split": SplitMode.ALWAYS}
    gone = {"num_cached_tokens": 900, **why}
    assert pair("p1", view("d1", **gone), "d2", **options) == ("p1", "d2")
    assert pair(view("p1", **gone), "p2", "d1", **options) == ("p2", "d1")
    assert pair(view("p1", **gone), "d1", policy=policy) == ("d1", "d1")


@every_policy
def test_whoever_refused_is_not_asked_again(policy: RoutingPolicy) -> None:
    options: dict[str, Any] = {"policy": policy, "split": SplitMode.ALWAYS}
    assert pair("p1", "p2", "d1", "d2", excluded=("p1", "d1"), **options) == ("p2", "d2")


@every_policy
def test_a_decode_worker_without_room_is_passed_over_only_for_a_split(policy: RoutingPolicy) -> None:
    full = view("d1", can_reserve=False)
    assert pair("p", full, "d2", split=SplitMode.ALWAYS, policy=policy) == ("p", "d2")
    assert pair("p", full, prompt=10, policy=policy) == ("d1", "d1")


@every_policy
def test_a_mixed_worker_without_room_for_the_blocks_can_still_compute_them(policy: RoutingPolicy) -> None:
    full = view("m1", can_reserve=False)
    assert pair(full, "m2", split=SplitMode.ALWAYS, policy=policy) == ("m1", "m2")


@every_policy
def test_where_no_mixed_worker_has_room_for_others_blocks_one_takes_the_request_alone(
    policy: RoutingPolicy,
) -> None:
    prefill, decode = pair(*(view(name, can_reserve=False) for name in ("m1", "m2", "m3")), policy=policy)
    assert prefill == decode


@every_policy
@pytest.mark.parametrize(
    ("workers", "options", "reason", "is_permanent"),
    [
        ((), {}, "no decode worker is registered", True),
        (("p",), {}, "no decode worker is registered", True),
        (("p", "d"), {"excluded": ("d",)}, "every decode worker is full", False),
        (("p", "d"), {"excluded": ("p",), "split": SplitMode.ALWAYS}, "every prefill worker is full", False),
        (("d", "d2"), {"split": SplitMode.ALWAYS}, "no prefill worker is registered and awake", True),
        (("m",), {"split": SplitMode.ALWAYS}, "no prefill worker is registered and awake", True),
        (("p", view("d", can_reserve=False)), {}, "no decode worker has room for the prompt", False),
        (("p", view("d", is_asleep=True)), {}, "every decode worker sleeps", True),
        (("p", view("d", is_paused=True)), {}, "every decode worker is paused", False),
        (("p", view("d", is_draining=True)), {}, "every decode worker sleeps or drains", True),
        (("p", view("d", is_faulty=True)), {}, "every decode worker is faulty", False),
        (
            (view("p", is_faulty=True), "d"),
            {"split": SplitMode.ALWAYS},
            "every prefill worker is faulty",
            False,
        ),
        ((FAULTY, view("d2", is_paused=True)), {}, "every decode worker is paused or faulty", False),
        ((view("p", is_paused=True), "d"), ALWAYS, "every prefill worker is paused", False),
        (("m", view("m2", is_paused=True)), ALWAYS, "every other worker is paused", False),
        (("p", BROKEN), ALWAYS, "no prefill worker's blocks arrive at a decode worker", False),
        (("d", view("d2", is_faulty=True)), {"excluded": ("d",)}, "every decode worker is full", False),
        (
            (view("d", max_model_len=1200), view("d2", max_model_len=900)),
            {"num_needed_tokens": 1201},
            "the request needs 1201 tokens; the largest max_model_len of a decode worker is 1200",
            True,
        ),
        (
            (view("d", max_model_len=900), view("d2", is_draining=True)),
            {"num_needed_tokens": 901},
            "every decode worker that holds 901 tokens sleeps or drains",
            True,
        ),
        (
            (view("d", max_model_len=900), view("d2", is_faulty=True)),
            {"num_needed_tokens": 901},
            "every decode worker is faulty",
            False,
        ),
        (
            (view("p", is_asleep=True), "d"),
            {"split": SplitMode.ALWAYS},
            "no prefill worker is registered and awake",
            True,
        ),
    ],
)
def test_no_place_has_a_reason_and_says_whether_waiting_helps(
    policy: RoutingPolicy, workers: tuple[Any, ...], options: dict[str, Any], reason: str, is_permanent: bool
) -> None:
    outcome, decision = choose(*workers, policy=policy, **options)
    assert isinstance(outcome, Unplaceable)
    assert (outcome.reason, outcome.is_permanent) == (reason, is_permanent)
    assert outcome.may_pass == any(word in reason for word in ("full", "room", "paused"))
    assert (decision.chosen, decision.reason, decision.candidates) == (None, reason, ())


# --- workers that do not hold as long a sequence ---


@every_policy
@pytest.mark.parametrize(("num_tokens", "chosen"), [(1100, {"d1", "d2", "d3"}), (1101, {"d3"})])
def test_a_worker_that_does_not_hold_the_sequence_is_left_out(
    policy: RoutingPolicy, num_tokens: int, chosen: set[str]
) -> None:
    small = [view(name, max_model_len=1100) for name in ("p1", "d1", "d2")]
    large = view("d3", num_sequences=5)
    for split in SplitMode:
        config = PlacementConfig(policy=policy, split=split)
        workers = [*small, large, view("p3", num_queued_tokens=500)]
        placement, decision = place(ask(num_needed_tokens=num_tokens), workers, config)
        assert isinstance(placement, Placement)
        assert placement.decode in chosen
        assert num_tokens <= 1100 or placement.prefill in ("d3", "p3")
        if num_tokens > 1100:
            reason = "holds 1100 tokens of a sequence; needed: 1101"
            assert dict(decision.left_out).items() >= {"d1": reason, "d2": reason, "p1": reason}.items()


@every_policy
def test_a_computed_prompt_moves_to_no_decode_worker_that_does_not_hold_it(policy: RoutingPolicy) -> None:
    config, small = PlacementConfig(policy=policy), view("d1", max_model_len=1007)
    request = ask(num_needed_tokens=1008)
    assert place_decoder(request, [view("p"), small, view("d2", num_sequences=9)], "p", config)[0] == "d2"
    assert place_decoder(request, [view("p"), small], "p", config)[0] is None
    assert place_decoder(request, [view("m"), small], "m", config, is_computed=True)[0] == "m"


# --- another decode worker ---


@every_policy
def test_a_prompt_that_is_computed_moves_to_another_decode_worker_with_room(policy: RoutingPolicy) -> None:
    workers = [view("p"), view("p2"), view("d1"), view("d2", can_reserve=False), view("d3")]
    config = PlacementConfig(policy=policy)
    decoder, decision = place_decoder(ask(), workers, "p", config, {"d1": "has refused it"})
    assert decoder == "d3"
    assert decision.reason.startswith("moved: p keeps the prompt; ")
    assert dict(decision.left_out) == {
        "p2": "is not needed in its role, prefill",
        "d1": "has refused it",
        "d2": "has no room for the prompt",
    }
    full = {"d1": "has refused it", "d3": "has refused it"}
    assert place_decoder(ask(), workers, "p", config, full)[0] is None


@every_policy
def test_a_computed_prompt_stays_where_it_is_once_nobody_else_decodes(policy: RoutingPolicy) -> None:
    config, left = PlacementConfig(policy=policy), view("d", is_draining=True)
    decoder, decision = place_decoder(ask(), [view("m"), left], "m", config, is_computed=True)
    assert decoder == "m"
    assert decision.chosen is not None
    assert (decision.chosen.prefill, decision.chosen.decode) == ("m", "m")
    assert place_decoder(ask(), [view("m"), left], "m", config)[0] is None
    full = view("d", can_reserve=False)
    assert place_decoder(ask(), [view("m"), full], "m", config, is_computed=True)[0] is None
    assert place_decoder(ask(), [view("p"), left], "p", config, is_computed=True)[0] is None


def test_a_prompt_moves_to_the_decode_worker_that_lacks_the_least() -> None:
    held = {"num_cached_tokens": 1000}
    workers = [view("p", **held), view("d1"), view("d2", num_cached_tokens=500)]
    assert place_decoder(ask(), workers, "p", PlacementConfig())[0] == "d2"


# --- pairs whose blocks do not arrive ---


@every_policy
def test_no_request_is_split_between_workers_of_a_broken_pair(policy: RoutingPolicy) -> None:
    broken = view("d1", broken_sources=frozenset({"p1"}))
    config = PlacementConfig(policy=policy, split=SplitMode.ALWAYS)
    placement, _ = place(ask(), [view("p1"), view("p2"), broken], config)
    assert isinstance(placement, Placement)
    assert (placement.prefill, placement.decode) == ("p2", "d1")


def test_a_decode_worker_that_gets_nobodys_blocks_takes_requests_alone() -> None:
    broken = view("d1", broken_sources=frozenset({"p1"}))
    placement, _ = place(ask(), [view("p1"), broken], PlacementConfig())
    assert isinstance(placement, Placement)
    assert (placement.prefill, placement.decode) == ("d1", "d1")
    assert place_decoder(ask(), [view("p1"), broken], "p1", PlacementConfig())[0] is None


# --- what is recorded ---


def test_a_decision_tells_of_the_best_candidates_and_of_who_was_none() -> None:
    _, decision = choose(
        *(f"p{number}" for number in range(5)),
        *(f"d{number}" for number in range(4)),
        view("d8", is_asleep=True),
        view("p8", is_draining=True),
        excluded=("p4", "d3"),
        at_s=7.5,
    )
    assert (decision.policy, decision.at_s) == ("cost", 7.5)
    assert decision.num_candidates == 3 + 4 * 3
    assert len(decision.candidates) == MAX_CANDIDATES
    assert decision.chosen == decision.candidates[0]
    scores = [candidate.cost.score_s for candidate in decision.candidates]
    assert scores == sorted(scores)
    assert decision.left_out == (
        ("p4", "has refused it"),
        ("d3", "has refused it"),
        ("d8", "sleeps"),
        ("p8", "drains"),
    )
    assert decision.reason == (
        "alone (split=auto): d0 lacks 1000 tokens; "
        "TTFT 1.0000 s + gap 0.0100 s + stall 0.1000 s + affinity 0.0000 s give 1.1100 s, the least"
    )


def test_workers_of_the_other_role_are_left_out_where_nothing_is_split() -> None:
    _, decision = choose("p", "d", split=SplitMode.NEVER)
    assert decision.left_out == (("p", "is not needed in its role, prefill"),)
    _, decision = choose("p", view("d", num_cached_tokens=1000), split=SplitMode.ALWAYS)
    assert decision.left_out == (("p", "is not needed in its role, prefill"),)
    _, decision = choose("p", "d", view("d2", num_cached_tokens=90), prompt=100)
    assert decision.left_out == (("p", "decode workers lack at most 100 tokens; min_split_tokens is 256"),)


@pytest.mark.parametrize("policy", SIMPLE)
def test_policies_without_costs_record_what_would_be_predicted_in_their_order(policy: RoutingPolicy) -> None:
    _, decision = choose("p1", "p2", "d1", "d2", policy=policy)
    assert [candidate.cost.score_s for candidate in decision.candidates] == [0.0, 1.0]
    assert decision.chosen == decision.candidates[0]
    assert decision.chosen.cost.ttft_s == pytest.approx(1.0)
    assert decision.num_candidates == 4
    assert decision.reason.endswith(f"the first by {policy}")


@every_policy
def test_equal_snapshots_give_equal_decisions_in_any_order_of_the_workers(policy: RoutingPolicy) -> None:
    views = [
        view(name, num_sequences=number % 3) for number, name in enumerate(("p1", "p2", "m", "d1", "d2"))
    ]
    options: dict[str, Any] = {"policy": policy, "request_id": "r", "session_id": "s", "turn": 3}
    assert pair(*views, **options) == pair(*reversed(views), **options)


def test_a_request_stays_on_the_data_parallel_rank_that_it_names_while_that_can_serve_it() -> None:
    workers = [view(f"{role}{rank}", data_parallel_rank=rank) for rank in range(2) for role in "pd"]
    config = PlacementConfig(split=SplitMode.ALWAYS)
    for rank in range(2):
        placed, decision = place(ask(data_parallel_rank=rank), workers, config, {})
        assert isinstance(placed, Placement)
        assert (placed.prefill, placed.decode) == (f"p{rank}", f"d{rank}")
        reason = f"has data_parallel_rank {1 - rank}; needed: {rank}"
        assert (f"p{1 - rank}", reason) in decision.left_out
    without = [one for one in workers if one.worker_id != "d1"]
    placed, _ = place(ask(data_parallel_rank=1), without, config, {})
    assert isinstance(placed, Placement)
    assert placed.decode == "d0", "where its rank has no decode worker, others take it"
