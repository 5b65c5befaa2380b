"""The figures of a table are those of its answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_simulator.capacity.figures import percentile
from bench.replay.loads import Answer
from bench.replay.metrics import RunMetrics, Spread, measure, paired_change, pairs_table, policy_table, shown


def make_answer(*times_s: float, cached: int = 0, workers: tuple[str, str] = ("p", "d")) -> Answer:
    return Answer(
        sent_s=0.0,
        times_s=list(times_s),
        token_ids=[1] * len(times_s),
        cached_tokens=cached,
        prefill_worker=workers[0],
        decode_worker=workers[1],
    )


def make_runs(*e2es: float) -> list[RunMetrics]:
    run = measure([make_answer(1.0, 2.0)], 10)
    return [replace(run, mean_e2e_s=e2e) for e2e in e2es]


def test_first_token_gap_and_intervals_are_told_apart() -> None:
    run = measure([make_answer(1.0, 1.5, 1.6, 1.8), make_answer(3.0, cached=5, workers=("m", "m"))], 20)
    assert run.mean_ttft_s == 2.0
    assert run.mean_gap_s == 0.5
    assert run.mean_itl_s == pytest.approx(0.15)
    assert run.p99_itl_s == pytest.approx(0.2)
    assert run.mean_e2e_s == 2.4
    assert run.hit_rate == 0.25
    assert run.split_share == 0.5


def test_a_request_without_an_answer_has_no_times() -> None:
    failed = Answer(sent_s=0.0, times_s=[9.0], token_ids=[1], error="UNAVAILABLE")
    assert measure([make_answer(1.0, 2.0), failed], 10).mean_ttft_s == 1.0
    with pytest.raises(ValueError, match="no request was answered"):
        measure([failed], 10)


def test_a_request_that_ended_with_its_first_token_is_not_split() -> None:
    assert not make_answer(1.0, workers=("p", "")).is_split


def test_a_percentile_is_a_value_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 99) == 99
    assert percentile(values[:50], 99) == 100
    assert percentile([], 99) == 0


def test_changes_are_those_of_pairs() -> None:
    runs, base = make_runs(2.0, 4.0, 9.0), make_runs(1.0, 4.0, 10.0)
    assert paired_change(runs, base, "mean_e2e_s") == Spread(median=0.0, low=pytest.approx(-0.1), high=1.0)
    assert paired_change(runs, make_runs(0.0, 4.0, 10.0), "mean_e2e_s") is None


def test_tables_show_median_and_range() -> None:
    columns = {"E2E, ms": ("mean_e2e_s", 1e3, ".0f")}
    runs = {"cost": make_runs(1.0, 2.0, 3.0), "other": make_runs(2.0, 3.0, 3.0)}
    assert shown(Spread.of([3.0, 1.0, 2.0]), 1e3, ".0f") == "2000 (1000 to 3000)"
    assert policy_table(runs, columns).splitlines() == [
        "|       |             E2E, ms |",
        "| ----- | ------------------: |",
        "| cost  | 2000 (1000 to 3000) |",
        "| other | 3000 (2000 to 3000) |",
    ]
    assert "| other           | +50 (+0 to +100) |" in pairs_table(runs, "cost", columns)
