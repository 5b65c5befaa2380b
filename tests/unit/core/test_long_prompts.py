"""Long prompts beside short ones: chunks, and how many prompts are computed in part at a time."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import InvalidConfigError
from baton_worker.core.scheduler import Scheduler
from baton_worker.core.scheduler_config import SchedulerConfig, SchedulingPolicy, parse_policy
from tests.builders import make_sequence
from tests.unit.core.scheduling import finish_step, make_scheduler, plan_step, run_steps, shape


def add(scheduler: Scheduler, *prompts: tuple[str, int]) -> None:
    for name, length in prompts:
        number = scheduler.num_waiting + scheduler.num_running
        scheduler.add(make_sequence(name, prompt=length, first=97 * number, arrival_s=number))


def test_a_long_prompt_leaves_the_rest_of_the_budget_to_others() -> None:
    scheduler, _ = make_scheduler(64, budget=16, long_prefill_token_threshold=8)
    add(scheduler, ("long", 40), ("short", 6))
    assert shape(plan_step(scheduler)) == [("long", 0, 8), ("short", 0, 6)]


def test_decodes_and_short_prompts_go_on_beside_a_long_one() -> None:
    scheduler, _ = make_scheduler(64, budget=12, long_prefill_token_threshold=6)
    add(scheduler, ("long", 30))
    run_steps(scheduler, 1)
    add(scheduler, ("a", 4))
    run_steps(scheduler, 1)
    add(scheduler, ("b", 4))
    assert shape(plan_step(scheduler)) == [("a", 4, 1), ("long", 12, 6), ("b", 0, 4)]


def test_short_prompts_pass_a_long_one_that_waits_for_another_long_one() -> None:
    scheduler, _ = make_scheduler(64, budget=24, long_prefill_token_threshold=6, max_num_partial_prefills=3)
    add(scheduler, ("long", 20), ("longer", 30), ("short", 6))
    assert shape(plan_step(scheduler)) == [("long", 0, 6), ("short", 0, 6)]


def test_as_many_long_prompts_as_allowed_are_computed_together() -> None:
    scheduler, _ = make_scheduler(
        64, budget=24, long_prefill_token_threshold=6, max_num_partial_prefills=3, max_long_partial_prefills=2
    )
    add(scheduler, ("a", 20), ("b", 20), ("c", 20))
    assert shape(plan_step(scheduler)) == [("a", 0, 6), ("b", 0, 6)]


def test_a_long_prompt_that_waited_comes_when_the_other_is_done() -> None:
    scheduler, _ = make_scheduler(64, budget=24, long_prefill_token_threshold=6)
    add(scheduler, ("a", 10), ("b", 20))
    plans = []
    for _ in range(3):
        plan = plan_step(scheduler)
        plans.append(shape(plan))
        finish_step(scheduler, plan)
    assert plans == [[("a", 0, 6)], [("a", 6, 4), ("b", 0, 6)], [("a", 10, 1), ("b", 6, 6)]]


def test_a_prompt_that_would_be_cut_waits_where_only_one_may_be_computed_in_part() -> None:
    scheduler, _ = make_scheduler(64, budget=12, long_prefill_token_threshold=8)
    add(scheduler, ("long", 40), ("cut", 6), ("whole", 3))
    assert shape(plan_step(scheduler)) == [("long", 0, 8), ("whole", 0, 3)]


def test_a_cached_prefix_makes_a_prompt_short() -> None:
    scheduler, _ = make_scheduler(64, budget=40, long_prefill_token_threshold=8)
    first = make_sequence("first", prompt=33)
    scheduler.add(first)
    run_steps(scheduler, 5)
    scheduler.remove(0.0, first)
    scheduler.add(make_sequence("long", prompt=30, first=100))
    scheduler.add(make_sequence("again", prompt=33, arrival_s=5.0))
    assert shape(plan_step(scheduler)) == [("long", 0, 8), ("again", 32, 1)]


def test_one_that_is_passed_over_does_not_keep_its_cached_prefix_from_eviction() -> None:
    scheduler, pool = make_scheduler(16, long_prefill_token_threshold=8)
    older, newer = (make_sequence(name, prompt=9, first=first) for name, first in (("a", 1), ("b", 100)))
    for seq in (older, newer):
        scheduler.add(seq)
        run_steps(scheduler, 2)
        scheduler.remove(0.0, seq)
    scheduler.add(make_sequence("long", prompt=40, first=200))
    scheduler.add(make_sequence("again", prompt=40, arrival_s=1.0))
    assert shape(plan_step(scheduler)) == [("long", 0, 8)]
    pool.allocate(pool.num_free + 2)
    assert [pool.cache.find(block_hash) for block_hash in older.hashes()] == [None, None]
    assert None not in [pool.cache.find(block_hash) for block_hash in newer.hashes()]


# --- under priorities ---


def test_a_less_important_long_prompt_pauses_for_a_more_important_one() -> None:
    scheduler, _ = make_scheduler(64, long_prefill_token_threshold=8)
    low = make_sequence("low", prompt=20, priority=9)
    scheduler.add(low)
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("high", prompt=20, first=100, arrival_s=1.0))
    plans = []
    for _ in range(4):
        plan = plan_step(scheduler)
        plans.append(shape(plan))
        finish_step(scheduler, plan)
    assert plans == [
        [("high", 0, 8)],
        [("high", 8, 8)],
        [("high", 16, 4), ("low", 8, 8)],
        [("high", 20, 1), ("low", 16, 4)],
    ]


def test_what_is_left_of_a_less_important_prompt_is_computed_whole_beside_a_long_one() -> None:
    scheduler, _ = make_scheduler(64, long_prefill_token_threshold=8)
    scheduler.add(make_sequence("low", prompt=12, priority=9))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("high", prompt=20, first=100, arrival_s=1.0))
    assert shape(plan_step(scheduler)) == [("high", 0, 8), ("low", 8, 4)]


def test_a_place_is_made_for_a_long_prompt_that_is_mostly_cached() -> None:
    scheduler, _ = make_scheduler(64, max_num_seqs=2, long_prefill_token_threshold=8)
    first = make_sequence("first", prompt=33)
    scheduler.add(first)
    run_steps(scheduler, 5)
    scheduler.remove(0.0, first)
    scheduler.add(make_sequence("low", prompt=3, first=300, arrival_s=1.0, priority=9))
    scheduler.add(make_sequence("long", prompt=40, first=100, arrival_s=2.0))
    run_steps(scheduler, 1)
    scheduler.add(make_sequence("again", prompt=33, arrival_s=3.0))
    assert shape(plan_step(scheduler)) == [("long", 8, 8), ("again", 32, 1)]


# --- configuration ---


def test_with_several_partial_prompts_the_threshold_follows_from_the_longest_sequence() -> None:
    config = SchedulerConfig(max_num_partial_prefills=2, max_num_batched_tokens=2048)
    assert config.for_model_len(10_000).long_prefill_token_threshold == 400
    assert config.for_model_len(100_000).long_prefill_token_threshold == 1024
    assert config.for_model_len(10).long_prefill_token_threshold == 1
    assert SchedulerConfig().for_model_len(10_000).long_prefill_token_threshold == 0
    chosen = SchedulerConfig(max_num_partial_prefills=2, long_prefill_token_threshold=77)
    assert chosen.for_model_len(10_000) == chosen


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; allowed: an integer of at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0; allowed: an integer of at least 1"),
        ({"max_num_partial_prefills": 0}, "max_num_partial_prefills is 0; allowed: an integer of at least 1"),
        ({"max_long_partial_prefills": 0}, "max_long_partial_prefills is 0; allowed: 1 to 1"),
        ({"max_long_partial_prefills": 2}, "max_long_partial_prefills is 2; allowed: 1 to 1"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold is -1; allowed"),
    ],
)
def test_limits_outside_their_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        SchedulerConfig(**settings)


def test_policies_have_names() -> None:
    assert parse_policy("priority") is SchedulingPolicy.PRIORITY
    with pytest.raises(InvalidConfigError, match="scheduling_policy is 'lifo'; allowed: fcfs or priority"):
        parse_policy("lifo")
