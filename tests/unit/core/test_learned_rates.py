"""Rates from synthetic steps and copies: they converge, follow a change, and stand a pause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_core.sessions.router_messages import KVSource
from baton_core.worker.learned_rates import MAX_POOLS, NUM_FIRST, LearnedRates
from baton_core.worker.step_plan import SeqId, SequenceSlice, StepPlan


class Worker:
    """Computes a step in a fixed time and so many tokens of prompts a second."""

    def __init__(self, *, step_s: float = 0.02, tokens_per_s: float = 1000.0) -> None:
        self.learned = LearnedRates()
        self.step_s = step_s
        self.tokens_per_s = tokens_per_s

    def step(self, *counts: int, pause_s: float = 0.0) -> None:
        slices = tuple(
            SequenceSlice(seq_id=SeqId(str(number), 0), token_ids=(1,) * count, start=0, block_tables=())
            for number, count in enumerate(counts)
        )
        prompt_tokens = sum(count for count in counts if count > 1)
        duration_s = self.step_s + prompt_tokens / self.tokens_per_s + pause_s
        self.learned.end_step(StepPlan(step_id=1, slices=slices), duration_s)

    @property
    def rates(self) -> tuple[float, float]:
        rates = self.learned.rates
        return rates.prefill_tokens_per_s, rates.decode_step_s


def test_nothing_is_known_before_the_first_step() -> None:
    worker = Worker()
    assert worker.rates == (0.0, 0.0)
    assert worker.learned.rates.pull_bytes_per_s == 0.0


def test_steps_with_and_without_prompt_tokens_give_both_rates() -> None:
    worker = Worker()
    for count in (512, 100, 2048, 33) * 2:
        worker.step(1, 1, 1)
        worker.step(1, count, 1)
    assert worker.rates == (pytest.approx(1000.0), pytest.approx(0.02))


def test_who_never_decodes_learns_from_its_large_chunks() -> None:
    worker = Worker()
    for count in (2048, 20, 2048, 20, 2048, 2, 300, 2, 300):
        worker.step(count)
    assert worker.rates == (pytest.approx(1000.0, rel=0.03), 0.0)


def test_a_change_is_followed_within_some_steps() -> None:
    worker = Worker()
    for _ in range(50):
        worker.step(1)
        worker.step(500)
    worker.step_s, worker.tokens_per_s = 0.002, 100_000.0
    for _ in range(60):
        worker.step(1)
        worker.step(500)
    assert worker.rates == (pytest.approx(100_000.0, rel=0.2), pytest.approx(0.002, rel=0.2))
    worker.step_s, worker.tokens_per_s = 0.2, 100.0
    for _ in range(60):
        worker.step(1)
        worker.step(500)
    assert worker.rates == (pytest.approx(100.0, rel=0.2), pytest.approx(0.2, rel=0.2))


def test_a_pause_of_the_machine_moves_a_rate_by_little() -> None:
    worker = Worker()
    for _ in range(20):
        worker.step(1)
        worker.step(500)
    worker.step(1, pause_s=30.0)
    worker.step(500, pause_s=30.0)
    prefill, decode_s = worker.rates
    assert 700 < prefill < 1000
    assert 0.02 < decode_s < 0.03


def test_a_step_of_a_kind_that_never_ran_teaches_nothing() -> None:
    worker = Worker()
    for count in range(1, 6):
        worker.step(*(1,) * count, pause_s=1.5)
    for count in (10, 100, 1000):
        worker.step(count, pause_s=1.5)
    assert worker.learned.rates == LearnedRates().rates
    for count in range(1, 6):
        worker.step(*(1,) * count)
    for count in (10, 100, 1000):
        worker.step(count)
    assert worker.rates == (pytest.approx(1000.0), pytest.approx(0.02))
    assert (worker.learned.rates.num_prefill_steps, worker.learned.rates.num_decode_steps) == (3, 5)


@pytest.mark.parametrize("slow", range(NUM_FIRST))
def test_one_slow_step_at_first_is_not_the_rate(slow: int) -> None:
    worker = Worker()
    worker.step(1)
    worker.step(500)
    for number in range(NUM_FIRST):
        assert worker.rates == (0.0, 0.0), "known too early"
        worker.step(1, pause_s=2.0 * (number == slow))
        worker.step(500, pause_s=2.0 * (number == slow))
    assert worker.rates == (pytest.approx(1000.0, rel=0.05), pytest.approx(0.02))


SOURCE = KVSource(worker_id="p", epoch=1, peer_address="", kv_description=b"")


def copied(learned: LearnedRates, seconds: float, *, source: KVSource = SOURCE, now: float = 0.0) -> float:
    """Copy 1,000 bytes; returns when it ends."""
    learned.begin_pull(now, 0, source, 1000)
    learned.end_pull(now + seconds, 0, is_whole=True)
    return now + seconds


def test_copies_that_wait_for_each_other_give_the_bandwidth_of_the_whole() -> None:
    learned = LearnedRates()
    copied(learned, 0.1)
    for pull_id in range(10):
        learned.begin_pull(5.0, pull_id, SOURCE, 1_000_000)
    for pull_id in range(10):
        learned.end_pull(5.5 + 0.5 * pull_id, pull_id, is_whole=True)
    assert learned.rates.pull_bytes_per_s == pytest.approx(2e6)


def test_copies_that_lost_something_or_were_empty_teach_nothing() -> None:
    learned = LearnedRates()
    copied(learned, 0.1)
    learned.begin_pull(1.0, 1, SOURCE, 1000)
    learned.end_pull(9.0, 1, is_whole=False)
    learned.begin_pull(9.0, 2, SOURCE, 0)
    learned.end_pull(10.0, 2, is_whole=True)
    learned.end_pull(11.0, 3, is_whole=True)
    assert learned.rates.num_pulls == 0
    now = 11.0
    for number in range(NUM_FIRST):
        assert (learned.rates.pull_bytes_per_s, learned.rates.num_pulls) == (0.0, number)
        now = copied(learned, 1.0, now=now)
    assert learned.rates.pull_bytes_per_s == 1000.0


def test_the_first_copy_from_a_pool_teaches_nothing() -> None:
    learned, now = LearnedRates(), 0.0
    for number in range(MAX_POOLS + 9):
        now = copied(learned, 5.0, source=replace(SOURCE, worker_id=f"p{number}"), now=now)
    again = replace(SOURCE, worker_id="p100")
    now = copied(learned, 5.0, source=replace(again, epoch=2), now=now)
    assert learned.rates.num_pulls == 0
    for _ in range(NUM_FIRST):
        now = copied(learned, 1.0, source=again, now=now)
    assert learned.rates.pull_bytes_per_s == 1000.0
