"""Each term of the predicted cost, by hand and by the way it moves the choice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from baton_core.sessions.worker_info import WorkerRates
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.placement.placement_cost import (
    AFFINITY,
    CHUNK_TOKENS,
    EXPECTED_BATCH_GROWTH,
    HANDOVER_S,
    CostModel,
)
from baton_router.core.placement.placement_record import Cost
from baton_router.core.placement.placement_snapshot import (
    PRIOR,
    WorkerSpeed,
    WorkerView,
    speed_of,
    typical_rates,
)
from baton_router.core.placement.routing_policies import RoutingPolicy
from tests.unit.core.placing import BLOCK_BYTES, ask, choose, pair, view

SLOW = {"prefill_tokens_per_s": 500.0}


def local(worker: WorkerView, *, stall_weight: float = 1.0, **changes: Any) -> Cost:
    model = CostModel(ask(**changes), stall_weight)
    (terms,) = model.terms([worker]).values()
    return model.local(terms).cost


def split(p: WorkerView, d: WorkerView, *, stall_weight: float = 1.0, **changes: Any) -> Cost:
    model = CostModel(ask(**changes), stall_weight)
    (prefill,), (decode,) = (model.terms([one]).values() for one in (p, d))
    return model.split(prefill, decode).cost


# --- by hand ---


def test_an_idle_worker_costs_what_it_computes_and_a_step() -> None:
    cost = local(view("m", num_cached_tokens=600))
    assert cost == Cost(queue_s=0.0, prefill_s=0.4, gap_s=0.01, stall_s=0.0, score_s=pytest.approx(0.41))
    assert cost.ttft_s == 0.4


def test_prompts_ahead_and_the_steps_of_its_own_take_their_time() -> None:
    cost = local(view("m", num_queued_tokens=500, prefill_step_s=0.1), prompt=2 * CHUNK_TOKENS)
    assert cost.queue_s == 0.5
    assert cost.prefill_s == pytest.approx(2 * CHUNK_TOKENS / 1000 + 2 * 0.1)


def test_the_last_token_is_always_computed() -> None:
    assert local(view("m", num_cached_tokens=1000)).prefill_s == 0.001


def test_sequences_that_run_wait_for_the_prompt_and_share_their_steps() -> None:
    cost = local(view("m", num_sequences=3), num_output_tokens=10)
    assert cost.stall_s == pytest.approx(3 * 1.0 + 3 * 10 / 1000)
    assert local(view("d"), num_output_tokens=10).stall_s == pytest.approx(EXPECTED_BATCH_GROWTH * 1.0)


def test_blocks_that_are_not_free_are_computed_anew_by_others() -> None:
    assert local(view("m", num_free_blocks=100)).stall_s == 0.0
    assert local(view("m", num_free_blocks=40)).stall_s == pytest.approx(60 * 10 / 1000)
    assert local(view("m", num_free_blocks=40, num_cached_tokens=600)).stall_s == 0.0


def test_a_worker_whose_places_are_taken_lets_wait() -> None:
    places = {"max_num_seqs": 4, "num_sequences": 5}
    assert local(view("m", **places), num_output_tokens=8).queue_s == pytest.approx(2 / 4 * 8 * 0.01)
    gap_s = split(view("p"), view("d", **places), num_output_tokens=8).gap_s
    assert gap_s == pytest.approx(split(view("p"), view("d")).gap_s + 2 / 4 * 8 * 0.01)
    assert pair(view("m1", num_sequences=2, max_num_seqs=2), view("m2", num_sequences=2)) == ("m2", "m2")


def test_sequences_of_the_request_itself_are_not_waited_for() -> None:
    assert local(view("m", max_num_seqs=4), num_sequences=16).queue_s == 0.0
    some = local(view("m", max_num_seqs=4, num_sequences=1), num_sequences=16, num_output_tokens=8)
    assert some.queue_s == pytest.approx(1 / 4 * 8 * 0.01), "those that run now"


def test_prefill_hides_a_transfer_but_for_the_last_chunk() -> None:
    prompt = 2 * CHUNK_TOKENS + 1000
    cost = split(view("p"), view("d"), prompt=prompt)
    assert cost.gap_s == pytest.approx(0.01 + HANDOVER_S + 100 * BLOCK_BYTES / 1e6)
    assert cost.prefill_s == pytest.approx(prompt / 1000)


def test_a_transfer_that_takes_longer_than_prefill_shows() -> None:
    slow = view("d", pull_bytes_per_s=1e4)
    transfer_s = 100 * BLOCK_BYTES / 1e4
    assert split(view("p", num_cached_tokens=990), slow).gap_s == pytest.approx(
        0.01 + HANDOVER_S + transfer_s - 0.01
    )
    there = view("d", pull_bytes_per_s=1e4, num_cached_tokens=990)
    assert split(view("p"), there).gap_s == pytest.approx(0.01 + HANDOVER_S + BLOCK_BYTES / 1e4)


def test_the_score_is_the_sum_of_what_is_told() -> None:
    p, d = view("p", num_queued_tokens=7), view("d", num_sequences=3)
    for session_id in ("", "s"):
        usual = split(p, d, session_id=session_id)
        for weight in (0.0, 1.0, 2.5):
            cost = split(p, d, stall_weight=weight, session_id=session_id)
            assert cost.stall_s == pytest.approx(weight * usual.stall_s)
            assert cost.score_s == pytest.approx(cost.ttft_s + cost.gap_s + cost.stall_s + cost.affinity_s)
            assert (cost.affinity_s > 0.0) == bool(session_id)
    alone = local(d, session_id="s")
    assert alone.affinity_s > 0.0
    assert alone.score_s == pytest.approx(alone.ttft_s + alone.gap_s + alone.stall_s + alone.affinity_s)


def test_each_step_of_priority_halves_or_doubles_what_others_weigh() -> None:
    busy = view("m", num_sequences=2)
    usual = local(busy)
    for priority, factor in ((-1, 0.5), (1, 2.0), (-4, 1 / 16), (-9, 1 / 16), (100, 16.0)):
        cost = local(busy, priority=priority)
        assert cost.score_s == pytest.approx(usual.ttft_s + usual.gap_s + factor * usual.stall_s)


# --- what is chosen ---


@pytest.mark.parametrize(
    "worse",
    [
        {"num_queued_tokens": 50},
        {"prefill_tokens_per_s": 900.0},
        {"prefill_step_s": 0.01},
        {"decode_step_s": 0.02},
        {"num_sequences": 1},
        {"num_free_blocks": 99},
    ],
)
def test_what_is_worse_at_one_worker_sends_the_request_to_the_other(worse: dict[str, Any]) -> None:
    assert pair("m1", "m2") == ("m1", "m1")
    assert pair(view("m1", **worse), "m2") == ("m2", "m2")


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({}, {"num_cached_tokens": 10}),
        ({"num_queued_tokens": 50}, {}),
        ({"prefill_tokens_per_s": 900.0}, {}),
        ({"num_sequences": 1}, {}),
    ],
)
def test_the_prefill_worker_of_a_pair_is_the_cheaper_one(
    worse: dict[str, Any], better: dict[str, Any]
) -> None:
    pure = {"split": SplitMode.ALWAYS}
    assert pair(view("p1", **worse), view("p2", **better), "d", **pure) == ("p2", "d")


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({}, {"num_cached_tokens": 500}),
        ({"pull_bytes_per_s": 5e5}, {}),
        ({"decode_step_s": 0.02}, {}),
        ({"num_sequences": 1}, {}),
        ({"num_free_blocks": 99}, {}),
    ],
)
def test_the_decode_worker_of_a_pair_is_the_cheaper_one(
    worse: dict[str, Any], better: dict[str, Any]
) -> None:
    pure = {"split": SplitMode.ALWAYS}
    assert pair("p", view("d1", **worse), view("d2", **better), **pure) == ("p", "d2")


def test_a_short_queue_is_worth_a_cached_prefix_and_a_long_one_is_not() -> None:
    assert pair(view("m1", num_cached_tokens=500, num_queued_tokens=400), "m2") == ("m1", "m1")
    assert pair(view("m1", num_cached_tokens=500, num_queued_tokens=600), "m2") == ("m2", "m2")


def test_a_prompt_is_split_when_it_would_stall_more_than_its_transfer_costs() -> None:
    assert pair("m1", view("m2", num_sequences=5)) == ("m1", "m1")
    crowd = {"num_sequences": 5}
    assert pair("p", view("d", **crowd)) == ("p", "d")
    assert pair(view("p", num_queued_tokens=9000), view("d", **crowd)) == ("d", "d")
    assert pair("p", view("d", pull_bytes_per_s=1e3, **crowd)) == ("d", "d")
    assert pair(view("p", num_queued_tokens=9000), view("d", **crowd), stall_weight=10.0) == ("p", "d")


def test_an_important_request_takes_the_stall_of_others_for_its_own_ttft() -> None:
    workers = (view("p", num_queued_tokens=2000), view("d", num_sequences=3))
    assert pair(*workers) == ("p", "d")
    assert pair(*workers, priority=-1) == ("d", "d")


def test_equal_costs_go_to_pure_roles_and_then_by_name() -> None:
    options: dict[str, Any] = {"split": SplitMode.ALWAYS}
    assert pair("m", "p", "d", **options) == ("p", "d")
    assert pair("p2", "p1", "d2", "d1", **options) == ("p1", "d1")


@pytest.mark.parametrize("policy", [RoutingPolicy.COST, RoutingPolicy.ROUND_ROBIN])
def test_a_worker_that_is_late_gives_way_to_one_that_is_well_in_time(policy: RoutingPolicy) -> None:
    queue, crowd = view("m1", num_queued_tokens=1500), view("m2", num_sequences=5)
    options: dict[str, Any] = {"policy": policy, "split": SplitMode.NEVER}
    assert pair(queue, crowd, max_ttft_s=2.6, **options) == ("m1", "m1")
    assert pair(queue, crowd, max_ttft_s=2.4, **options) == ("m2", "m2")
    assert pair(queue, crowd, max_ttft_s=1.9, **options) == ("m1", "m1"), "neither is well in time"
    decision = choose(queue, crowd, max_ttft_s=2.4, **options)[1]
    assert decision.left_out == (("m1", "gives a first token after 2.5 s; 1.2 s are well in time"),)


def test_of_a_pair_the_prefill_worker_is_to_be_in_time() -> None:
    workers = (view("p", num_queued_tokens=3000), view("d", num_sequences=5))
    assert pair(*workers) == ("p", "d")
    assert pair(*workers, max_ttft_s=2.0) == ("d", "d")
    assert pair(*workers, view("m", num_sequences=9), max_ttft_s=2.0, split=SplitMode.ALWAYS) == ("m", "d")


# --- about as good ---


def shares(*workers: WorkerView, **options: Any) -> dict[tuple[str, str], float]:
    """Share of each pair in requests without a session, one after the other; workers are idle each time."""
    count = 400
    pairs = Counter(pair(*workers, request_id=f"r{number}", **options) for number in range(count))
    return {names: number / count for names, number in pairs.items()}


def test_requests_spread_over_workers_that_are_equally_good() -> None:
    alone = shares(view("m1"), view("m2"))
    assert 0.4 < alone["m1", "m1"] < 0.6
    assert sum(alone.values()) == 1.0
    pairs = shares(*map(view, ("p1", "p2", "d1", "d2")), split=SplitMode.ALWAYS)
    assert len(pairs) == 4
    assert 0.15 < min(pairs.values()) <= max(pairs.values()) < 0.35


def test_a_difference_of_a_few_percent_leaves_each_worker_a_part() -> None:
    least = {}
    for percent in (0, 1, 2, 3, 6):
        slower = view("m2", prefill_tokens_per_s=1000.0 / (1 + percent / 100))
        least[percent] = shares(view("m1"), slower).get(("m2", "m2"), 0.0)
    assert least[0] > least[1] > least[2] > least[3] > 0.05
    assert least[6] == 0.0


# --- sessions ---


def test_requests_of_a_session_meet_and_sessions_spread() -> None:
    names = [f"m{number}" for number in range(8)]
    chosen = {session: pair(*names, session_id=session)[1] for session in map(str, range(64))}
    assert all(pair(*reversed(names), session_id=session)[1] == name for session, name in chosen.items())
    assert len(set(chosen.values())) > 4


def test_a_session_pays_no_more_for_its_worker_than_the_affinity_says() -> None:
    _, own = pair("m1", "m2", session_id="s")
    other = {"m1": "m2", "m2": "m1"}[own]
    queues = [
        num
        for num in range(0, 200, 5)
        if pair(view(own, num_queued_tokens=num), other, session_id="s")[1] == own
    ]
    assert queues == list(range(0, 5 * len(queues), 5))
    assert 0 < queues[-1] / 1000 < AFFINITY * 1.1


def test_a_worker_that_leaves_takes_only_its_own_sessions_along() -> None:
    names = [f"m{number}" for number in range(8)]
    for session in map(str, range(32)):
        before = pair(*names, session_id=session)[1]
        after = pair(*names[1:], session_id=session)[1]
        assert after == before or before == names[0]


# --- rates that are not known ---


def test_a_fleet_that_knows_nothing_takes_the_priors() -> None:
    typical = typical_rates([WorkerRates(), WorkerRates()])
    assert typical == PRIOR
    assert speed_of(WorkerRates(), typical) == WorkerSpeed()


def test_a_worker_is_taken_to_do_what_the_others_do_until_it_knows() -> None:
    known = [WorkerRates(prefill_tokens_per_s=rate, decode_step_s=0.01) for rate in (100.0, 400.0)]
    typical = typical_rates([*known, WorkerRates()])
    assert typical.prefill_tokens_per_s == 200.0
    assert speed_of(WorkerRates(decode_step_s=0.5), typical) == WorkerSpeed(
        prefill_tokens_per_s=200.0, decode_step_s=0.5, pull_bytes_per_s=PRIOR.pull_bytes_per_s
    )
    assert speed_of(known[0], typical).prefill_step_s == 0.01


def test_one_token_has_no_gap_and_makes_no_later_step_longer() -> None:
    busy = view("d", num_sequences=5)
    _, decision = choose(busy, num_output_tokens=1)
    assert decision.chosen is not None
    assert decision.chosen.cost.gap_s == 0
    assert decision.chosen.cost.stall_s == pytest.approx(5.1 * 1.0)
