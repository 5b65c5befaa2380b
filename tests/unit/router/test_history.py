"""The ring of samples behind the dashboard's curves."""

from __future__ import annotations

import pytest

from baton_core.sessions.worker_info import Role
from baton_router.metrics.history import INTERVAL_S, MAX_SAMPLES, RATE_INTERVALS, Counts, History, Loads

START_S = 1_800_000_000.0


def make_counts(number: int) -> Counts:
    return Counts(
        num_finished=number,
        num_failed=2 * number,
        num_prompt_tokens=10 * number,
        num_generated_tokens=100 * number,
        transfer_bytes=1000 * number,
    )


def make_loads(num_running: int = 0) -> Loads:
    return Loads(
        num_queued=1, num_running=num_running, num_waiting=2, kv_usage={Role.DECODE: 0.25}, ttft_p90_s=None
    )


def make_history(num_readings: int) -> History:
    history = History()
    for number in range(num_readings):
        history.add(START_S + INTERVAL_S * number, make_counts(number), make_loads(number))
    return history


def test_the_first_reading_only_begins_the_rates() -> None:
    assert make_history(1).since(0) == []


def test_rates_are_differences_over_the_time_that_went_by() -> None:
    history = History()
    history.add(START_S, make_counts(5), make_loads())
    history.add(START_S + 4.0, make_counts(7), make_loads(3))
    (sample,) = history.since(0)
    assert (sample.finished_per_s, sample.failed_per_s) == (0.5, 1.0)
    assert (sample.prompt_tokens_per_s, sample.generated_tokens_per_s) == (5.0, 50.0)
    assert sample.transfer_bytes_per_s == 500.0
    assert (sample.at_s, sample.loads.num_running) == (START_S + 4.0, 3)


def test_rates_are_means_over_a_few_intervals() -> None:
    history = make_history(RATE_INTERVALS + 1)
    for number in range(RATE_INTERVALS):
        at_s = START_S + INTERVAL_S * (RATE_INTERVALS + 1 + number)
        history.add(at_s, make_counts(RATE_INTERVALS), make_loads())
    rates = [sample.finished_per_s for sample in history.since(0)]
    assert rates[:RATE_INTERVALS] == pytest.approx([1 / INTERVAL_S] * RATE_INTERVALS)
    assert rates[RATE_INTERVALS:] == pytest.approx(
        [(RATE_INTERVALS - number) / RATE_INTERVALS / INTERVAL_S for number in range(1, RATE_INTERVALS + 1)]
    )


def test_the_oldest_samples_are_forgotten() -> None:
    samples = make_history(MAX_SAMPLES + 50).since(0)
    assert len(samples) == MAX_SAMPLES
    assert samples[0].loads.num_running == 50
    assert samples[-1].loads.num_running == MAX_SAMPLES + 49


def test_only_what_is_new_is_given_to_who_has_the_rest() -> None:
    history = make_history(10)
    known = history.since(0)
    assert [sample.loads.num_running for sample in history.since(known[5].at_s)] == [7, 8, 9]
    assert history.since(known[-1].at_s) == []


def test_a_reading_at_the_same_time_makes_no_sample() -> None:
    history = History()
    for _ in range(2):
        history.add(START_S, make_counts(1), make_loads())
    assert history.since(0) == []
