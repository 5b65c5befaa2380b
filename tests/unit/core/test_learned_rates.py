"""Rates from synthetic steps and copies: they converge, follow a change, and stand a pause."""

from __future__ import annotations

import pytest

from baton_core.worker.learned_rates import LearnedRates
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
    for count in (512, 100, 2048, 33):
        worker.step(1, 1, 1)
        worker.step(1, count, 1)
    assert worker.rates == (pytest.approx(1000.0), pytest.approx(0.02))


def test_who_never_decodes_learns_from_its_large_chunks() -> None:
    worker = Worker()
    for count in (2048, 20, 2048, 2, 2048, 300):
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


def test_copies_that_wait_for_each_other_give_the_bandwidth_of_the_whole() -> None:
    learned = LearnedRates()
    for pull_id in range(10):
        learned.begin_pull(5.0, pull_id, 1_000_000)
    for pull_id in range(10):
        learned.end_pull(5.5 + 0.5 * pull_id, pull_id, is_whole=True)
    assert learned.rates.pull_bytes_per_s == pytest.approx(2e6)


def test_copies_that_lost_something_or_were_empty_teach_nothing() -> None:
    learned = LearnedRates()
    learned.begin_pull(0.0, 1, 1000)
    learned.end_pull(9.0, 1, is_whole=False)
    learned.begin_pull(9.0, 2, 0)
    learned.end_pull(10.0, 2, is_whole=True)
    learned.end_pull(11.0, 3, is_whole=True)
    assert learned.rates.pull_bytes_per_s == 0.0
    learned.begin_pull(11.0, 4, 1000)
    learned.end_pull(12.0, 4, is_whole=True)
    assert learned.rates.pull_bytes_per_s == 1000.0
