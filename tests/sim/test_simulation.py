"""Seeded runs with faults: many hold, mistakes in the core do not, and the same seed does the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from baton.cli import main
from baton_core.errors import InvalidConfigError
from baton_simulator.campaign import Plan, Tally, run_campaign, run_seeds
from baton_simulator.run_report import describe_run
from baton_simulator.scenario import FaultKind, make_scenario
from baton_simulator.shrink import shrink
from baton_simulator.simulation import simulate
from baton_simulator.topology import parse_topology
from tests.sim.mutations import MISTAKES, READS_WRONG, Mistake

NUM_SEEDS = 200
PER_TEST = 100
ENDED_WITHIN_S = 2.0
"""Three tasks of 25 runs, which two processes still have then, take longer."""
MET = (
    "crashes",
    "departures",
    "freezes",
    "ranks lost",
    "slow ranks",
    "partitions",
    "partitions one way",
    "streams broken",
    "sessions resumed",
    "requests placed again",
    "transfers aborted",
    "leases expired",
    "preemptions",
    "steps planned ahead",
    "steps beside others",
    "chunks behind one in flight",
    "steps with drafts",
    "drafts by a model",
    "blocks between groups of different sizes",
)
MAX_SEEDS = 30
"""In which a mistake has to be seen."""
SAME_RUNS = """
from baton_simulator.scenario import make_scenario
from baton_simulator.simulation import simulate
print("".join(simulate(make_scenario(seed)).log.text() for seed in range(6)), end="")
"""


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, PER_TEST))
def test_many_seeds_hold(first: int) -> None:
    tally = run_seeds(Plan(), range(first, first + PER_TEST))
    assert tally.failed_seed is None, f"baton simulate --seed {tally.failed_seed}"
    assert tally.num_runs == PER_TEST
    assert [name for name in MET if not tally.counts[name]] == []
    assert tally.counts["requests finished"] > 0.8 * tally.counts["requests"]


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_the_core_is_seen(mistake: Mistake) -> None:
    seen = MAX_SEEDS
    with mistake.made():
        for seed in range(MAX_SEEDS):
            if simulate(mistake.scenario(seed)).failure:
                seen = seed
                break
    assert seen < MAX_SEEDS, f"not seen in {MAX_SEEDS} seeds"
    failures = [simulate(mistake.scenario(seed)).failure for seed in range(seen + 1)]
    assert failures == [""] * len(failures), "the core without the mistake holds"


def test_heads_that_are_read_wrong_are_caught_by_checksums() -> None:
    """So blocks are computed again, and tokens are right; without a mistake none arrives wrong."""
    scenarios = [replace(READS_WRONG, backend="tcp").scenario(seed) for seed in range(10)]
    with READS_WRONG.made():
        wrong = [simulate(scenario) for scenario in scenarios]
    right = [simulate(scenario) for scenario in scenarios]
    assert {run.failure for run in wrong + right} == {""}
    num_wrong = [
        sum(run.counts.get("blocks that arrived wrong", 0) for run in runs) for runs in (wrong, right)
    ]
    assert num_wrong[0] > num_wrong[1] == 0


def test_the_same_seed_writes_the_same_bytes_in_every_process() -> None:
    logs = [
        subprocess.run(
            [sys.executable, "-c", SAME_RUNS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert logs[0] == logs[1]
    here = "".join(simulate(make_scenario(seed)).log.text() for seed in range(6))
    assert logs[0].decode() == here
    assert here.count("\n") > 500


def test_a_failing_scenario_shrinks_to_its_cause_and_tells_it() -> None:
    mistake = MISTAKES["skip an epoch check"]
    with mistake.made():
        failing = next(
            scenario
            for scenario in map(mistake.scenario, range(MAX_SEEDS))
            if simulate(scenario).failure and len(scenario.requests) > 2
        )
        small = shrink(failing, lambda smaller: bool(simulate(smaller).failure))
        story = describe_run(simulate(small))
    assert len(small.faults) == len(small.requests) == 1
    (fault,) = small.faults
    assert fault.kind is FaultKind.CRASH
    assert "Subscribe d1-1-1" in story
    assert "FAILS: p1: a message for epoch 1" in story
    assert story.count("\n") < 120


def test_a_failing_seed_is_told_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", "--topology", "1p1d", "--faults", "crash"]
    assert main([*asked, "--seed", "3"]) == 0
    assert "1 runs" in capsys.readouterr().out
    with MISTAKES["skip an epoch check"].made():
        assert main([*asked, "--seed", "3"]) == 1
    told = capsys.readouterr().out
    assert "seed 3 failed" in told
    assert told.endswith("Again: baton simulate --seed 3 --topology 1p1d --faults crash\n")


def test_seeds_run_in_processes_and_what_they_met_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "30", "--first", "5", "--faults", "none"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("30 runs in ")
    assert "requests finished: " in told
    assert "crashes" not in told


def test_an_interrupt_ends_processes_amid_their_runs() -> None:
    interrupted_s = 0.0

    def interrupt(_: Tally) -> None:
        nonlocal interrupted_s
        interrupted_s = time.monotonic()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_campaign(Plan(), range(100_000), 2, interrupt)
    assert time.monotonic() - interrupted_s < ENDED_WITHIN_S


@pytest.mark.parametrize("text", ["", "2p", "1p1d1x", "0p1d", "1r"])
def test_a_topology_that_serves_nobody_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"topology is .*; allowed: counts of p, d, m and r"):
        parse_topology(text)


def test_an_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--faults", "crash,plague"]) == 2
    assert "--faults is 'crash,plague'; allowed: all, none, or some of crash" in capsys.readouterr().err


def test_without_faults_nothing_ends_in_an_error() -> None:
    tally = run_seeds(Plan(kinds=frozenset()), range(20))
    assert tally.failed_seed is None
    assert tally.counts["requests finished"] == tally.counts["requests"]
