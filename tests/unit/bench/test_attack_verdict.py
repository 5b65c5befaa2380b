"""`bench.attack` finds the faults that it should, and runs every attack."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random

import pytest

from bench.attack.attacker import ATTACKS, in_random_order
from bench.attack.observations import Held, Sample
from bench.attack.verdict import AttackSum, Pings, Report, each_minute, quantile, slope_of
from bench.chaos.clients import Tally

FLAT = [60.0, 61.0] * 5
OPEN = Held(20, 8)


def make_report(
    *,
    tally: Tally | None = None,
    pings_ms: Sequence[float] = (5.0,) * 200,
    minutes: Sequence[float] = FLAT,
    after: Held = OPEN,
    wrong: Sequence[str] = (),
    not_idle: str = "",
) -> Report:
    seconds = range(60 * len(minutes))
    samples = [Sample(float(second), {"router-0": minutes[second // 60]}) for second in seconds]
    return Report(
        tallies={"gRPC": tally or Tally(num_right=10)},
        pings=Pings([(0.0, 5.0)], list(enumerate(pings_ms))),
        samples=samples,
        held_before={"router-0": OPEN},
        held_after={"router-0": after},
        log_bytes={"router-0": 100},
        num_tracebacks=0,
        attacks={"junk": AttackSum(times_s=[(0.0, 1.0)], wrong=list(wrong))},
        not_idle=not_idle,
    )


def test_a_calm_report_has_no_fault() -> None:
    assert list(make_report().faults()) == []


@pytest.mark.parametrize(
    ("report", "fault"),
    [
        (make_report(tally=Tally(wrong=["a"])), "ordinary gRPC streams: 1 differ, 0 lost"),
        (make_report(tally=Tally(lost=["a", "b"])), "ordinary gRPC streams: 0 differ, 2 lost"),
        (make_report(pings_ms=[5.0] * 97 + [150.0] * 3), "p99 of /ping is 150 ms; allowed: below 100"),
        (make_report(pings_ms=[]), "p99 of /ping is inf ms; allowed: below 100"),
        (
            make_report(minutes=[60.0 + number for number in range(10)]),
            "the memory of router-0 grows by 1.00 MiB a minute, noise 0.00",
        ),
        (make_report(after=Held(20, 11)), "router-0 has 11 connections; before: 8"),
        (make_report(after=Held(29, 8)), "router-0 has 29 descriptors; before: 20"),
        (make_report(wrong=["no"]), "junk: 1 wrong answers, such as: no"),
        (make_report(not_idle="not every worker is idle"), "not every worker is idle"),
    ],
    ids=["differ", "lost", "pings", "no pings", "memory", "connections", "descriptors", "wrong", "busy"],
)
def test_each_fault_is_reported(report: Report, fault: str) -> None:
    assert list(report.faults()) == [fault]


def test_memory_that_jumps_up_and_down_or_settles_does_not_grow() -> None:
    rng = Random(3)
    assert not slope_of([60 + rng.uniform(-5, 5) for _ in range(10)]).is_growth
    assert not slope_of([60.0, 60.4, 60.6, 60.7, 60.8, 60.8, 60.8, 60.8, 60.8, 60.8]).is_growth
    assert not slope_of([70.0 - number for number in range(10)]).is_growth
    assert not slope_of([60.0, 600.0, 6000.0]).is_growth, "so few minutes say nothing"


def test_a_leak_below_the_noise_of_its_samples_is_found_over_ten_minutes() -> None:
    rng = Random(4)
    slope = slope_of([60 + 1.0 * minute + rng.uniform(-1, 1) for minute in range(10)])
    assert slope.is_growth
    assert slope.per_minute == pytest.approx(1.0, abs=0.3)


def test_a_minute_is_the_median_of_its_samples_and_one_that_has_only_begun_is_none() -> None:
    samples = [Sample(100.0 + second, {"a": float(second)}) for second in range(150)]
    assert each_minute(samples, "a") == [29.5, 89.5]


def test_a_quantile_is_a_value_that_was_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]


def test_pings_are_counted_to_the_attacks_that_ran_meanwhile() -> None:
    pings = Pings([(0.0, 5.0)], [(1.0, 6.0), (2.0, 7.0), (3.0, 8.0), (4.0, 9.0)])
    assert pings.during([(1.0, 2.0), (3.5, 9.0)]) == [6.0, 9.0]


def test_every_attack_comes_once_in_each_round_and_a_seed_repeats_the_order() -> None:
    order = [one.name for one in islice(in_random_order(ATTACKS, Random(1)), 2 * len(ATTACKS))]
    assert order == [one.name for one in islice(in_random_order(ATTACKS, Random(1)), 2 * len(ATTACKS))]
    assert order[: len(ATTACKS)] != order[len(ATTACKS) :]
    for half in (order[: len(ATTACKS)], order[len(ATTACKS) :]):
        assert sorted(half) == sorted({one.name for one in ATTACKS})
