"""The arithmetic of latencies, rates and goodput, against numpy and against figures worked out by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from baton_bench.figures import Spread, is_good, latencies_ms, measure, percentile
from tests.unit.baton_bench.answers import make_answer, make_run

PERCENTS = (0.0, 50.0, 90.0, 99.0, 99.9, 100.0)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
def test_a_spread_is_numpys(count: int) -> None:
    values = [random.Random(count).expovariate(1.0) for _ in range(count)]
    spread = Spread.of(values, PERCENTS)
    assert (spread.mean, spread.median, spread.std) == pytest.approx(
        (np.mean(values), np.median(values), np.std(values)), abs=1e-12
    )
    assert list(spread.percentiles.values()) == pytest.approx(list(np.percentile(values, PERCENTS)))


def test_of_nothing_all_figures_are_zero() -> None:
    assert Spread.of([], (50.0,)) == Spread(mean=0.0, median=0.0, std=0.0, percentiles={50.0: 0.0})
    assert percentile([], 99.0) == 0.0


def test_latencies_of_one_answer() -> None:
    """Sent at 1.0, tokens at 1.1, 1.2 and 1.4: (400 - 100) / (3 - 1) ms per token after the first."""
    values = latencies_ms([make_answer()])
    assert values["ttft"] == pytest.approx([100])
    assert values["e2el"] == pytest.approx([400])
    assert values["tpot"] == pytest.approx([150])
    assert values["itl"] == pytest.approx([100, 200])


def test_several_tokens_in_a_piece_count_for_the_time_per_token_and_not_between_pieces() -> None:
    values = latencies_ms([make_answer(tokens=7)])
    assert values["tpot"] == pytest.approx([50])
    assert len(values["itl"]) == 2


def test_a_single_token_has_no_time_per_token_and_meets_its_limit() -> None:
    answer = make_answer([1.1])
    assert latencies_ms([answer])["tpot"] == []
    assert is_good(answer, {"tpot": 0.001, "ttft": 100.1})


def test_an_answer_without_text_has_its_end_for_its_first_token() -> None:
    assert latencies_ms([make_answer([], tokens=3)])["ttft"] == pytest.approx([10])


def test_rates_are_those_of_whole_answers() -> None:
    figures = measure(make_run(make_answer(), make_answer(tokens=5), make_answer(error="lost")), (50.0,), {})
    assert (figures.completed, figures.failed, dict(figures.errors)) == (2, 1, {"lost": 1})
    assert (figures.total_input_tokens, figures.total_output_tokens) == (20, 8)
    assert (figures.request_throughput, figures.output_throughput) == (1.0, 4.0)
    assert figures.total_token_throughput == 14.0
    assert figures.request_goodput is None


def test_the_server_counts_the_tokens() -> None:
    answer = make_answer(prompt=10)
    answer.reported_prompt_tokens = 12
    silent = make_answer()
    silent.reported_tokens = None
    figures = measure(make_run(answer, silent), (50.0,), {})
    assert (figures.total_input_tokens, figures.total_output_tokens, figures.num_uncounted) == (22, 6, 1)


@pytest.mark.parametrize(
    ("limits", "good"),
    [({"ttft": 150.0}, 2), ({"ttft": 150.0, "tpot": 149.0}, 1), ({"e2el": 400.0}, 1), ({"ttft": 1.0}, 0)],
)
def test_goodput_counts_answers_that_meet_every_limit(limits: dict[str, float], good: int) -> None:
    """(TTFT, TPOT, E2E) in ms: (100, 150, 400 and a bit), (50, 50, 100), and one that failed."""
    quick = make_answer([1.05, 1.1])
    run = make_run(make_answer([1.1, 1.2, 1.4001]), quick, make_answer(error="lost"))
    assert measure(run, (50.0,), limits).request_goodput == good / 2.0


def test_lag_is_apart_from_the_wait_for_a_slot() -> None:
    """Due at 1.0, a slot at 1.5, sent at 1.52."""
    answer = make_answer([1.6], due_s=1.0, allowed_s=1.5, sent_s=1.52)
    figures = measure(make_run(answer), (90.0,), {})
    assert figures.slot_wait.mean == pytest.approx(500)
    assert figures.send_lag.percentiles == pytest.approx({90.0: 20, 99.0: 20})


def test_peaks() -> None:
    """Two overlap, the third begins when they are over; 4 tokens in the first second, 3 in the second."""
    first, second = make_answer([1.1, 1.9], tokens=2), make_answer([1.2, 1.8], tokens=2)
    third = make_answer([2.1, 2.2, 2.3], sent_s=2.0)
    figures = measure(make_run(first, second, third), (50.0,), {})
    assert (figures.max_concurrent_requests, figures.max_output_tokens_per_s) == (2, 4.0)
