"""The loads of a sweep and its verdict."""

from __future__ import annotations

import argparse

import pytest

from baton_simulator.capacity.step_timing import StepTiming, TimingProfile
from bench.placement_sweep import loss, make_cell, make_load
from bench.replay.loads import Answer
from bench.replay.metrics import RunMetrics, measure
from bench.replay.paired_runs import PairedRuns

TIMING = StepTiming(step_s=0.01, prompt_token_s=0.001, prompt_pair_s=0.0, decode_s=0.0, decode_context_s=0.0)
PROFILE = TimingProfile(
    model="m", machine="a", is_measured=False, source="s", kv_bytes_per_token=8, timing=TIMING
)
ARGUMENTS = argparse.Namespace(
    profile=PROFILE, output_tokens=8, max_num_batched_tokens=64, topology="4m", seconds=30.0, seed=0
)


def make_runs(*e2es: float) -> list[RunMetrics]:
    return [measure([Answer(sent_s=0.0, times_s=[e2e], token_ids=[1])], 1) for e2e in e2es]


def test_a_load_comes_at_the_rate_that_keeps_its_share_of_the_workers_busy() -> None:
    cell = make_cell(ARGUMENTS, 100, 0.5)
    assert cell.rate == pytest.approx(0.5 * 4 / 0.14)
    arrivals = make_load(ARGUMENTS, cell).arrivals
    assert len(arrivals) == round(cell.rate * 30)
    assert arrivals[-1].at_s == pytest.approx(30, rel=0.2)
    assert all(75 <= len(arrival.token_ids) <= 125 for arrival in arrivals)
    assert make_load(ARGUMENTS, cell).arrivals == arrivals


def test_auto_is_compared_with_the_better_setting_in_pairs() -> None:
    metrics = {"auto": make_runs(1.0, 2.2, 3.0), "always": make_runs(9.0, 9.0, 9.0)}
    runs = PairedRuns(metrics={**metrics, "never": make_runs(1.0, 2.0, 3.0)})
    assert loss(runs).median == pytest.approx(0.0)
    assert loss(runs).high == pytest.approx(0.1)
