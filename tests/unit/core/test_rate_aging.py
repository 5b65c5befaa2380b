"""Rates that nobody corrects drift towards those of workers that have learned theirs lately."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.sessions.worker_info import Role, WorkerLoad, WorkerRates
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.placement.rate_aging import (
    FRESH_S,
    HALF_LIFE_S,
    NOISE,
    LearnedAt,
    Report,
    aged_rates,
    median,
)
from tests.unit.core.routers import make_fleet

D, P = Role.DECODE, Role.PREFILL
LONG_AGO = -1000.0


def decode(worker_id: str, step_s: float, learned_s: float, role: Role = D) -> Report:
    return Report(worker_id, role, WorkerRates(decode_step_s=step_s), LearnedAt(decode_s=learned_s))


def steps(*reports: Report) -> dict[str, float]:
    return {name: rates.decode_step_s for name, rates in aged_rates(reports).items()}


def test_half_of_the_distance_is_gone_after_a_half_life() -> None:
    newest = decode("new", 0.01, 0.0)
    for num_halves, expected in ((0, 0.16), (1, 0.04), (2, 0.02), (40, 0.01)):
        old = decode("old", 0.16, -FRESH_S - num_halves * HALF_LIFE_S)
        assert steps(old, newest) == {"old": pytest.approx(expected), "new": pytest.approx(0.01)}


def test_a_rate_that_looks_too_good_drifts_as_well() -> None:
    old, new = decode("old", 0.001, LONG_AGO), decode("new", 0.01, 0.0)
    assert steps(old, new)["old"] == pytest.approx(0.01)


def test_what_is_learned_within_some_heartbeats_stays_as_it_is() -> None:
    reports = [decode(f"d{number}", 0.01 * 2**number, -number * FRESH_S / 3) for number in range(4)]
    assert aged_rates(reports) == {one.worker_id: one.rates for one in reports}


def test_rates_near_their_median_count_as_equal() -> None:
    most = 0.01 * NOISE
    reports = [
        decode(name, step_s, 0.0) for name, step_s in zip("abcd", (0.0099, 0.01, most, 2 * most), strict=True)
    ]
    typical = pytest.approx((0.01 * most) ** 0.5)
    assert steps(*reports) == {"a": typical, "b": typical, "c": typical, "d": 2 * most}


@pytest.mark.parametrize(("step_s", "is_equal"), [(0.0124, True), (0.0155, True), (0.0157, False)])
def test_of_two_workers_both_or_neither_count_as_equal(step_s: float, is_equal: bool) -> None:
    told = steps(decode("a", 0.01, 0.0), decode("b", step_s, 0.0))
    assert (told["a"] == told["b"]) is is_equal
    assert is_equal or told == {"a": 0.01, "b": step_s}


def test_it_is_the_median_of_the_newer_ones_that_the_older_ones_drift_to() -> None:
    newer = [decode(f"d{number}", step_s, 0.0) for number, step_s in enumerate((0.01, 0.02, 5.0))]
    assert steps(decode("old", 1.0, LONG_AGO), *newer)["old"] == pytest.approx(0.02)


def test_one_worker_that_has_all_the_traffic_brings_all_others_back() -> None:
    reports = [decode("a", 0.01, 0.0), decode("b", 1.0, LONG_AGO), decode("c", 9.0, LONG_AGO - 1.0)]
    assert steps(*reports) == {name: pytest.approx(0.01) for name in "abc"}


def test_where_nobody_learns_nothing_drifts() -> None:
    reports = [decode("a", 0.01, LONG_AGO), decode("b", 1.0, LONG_AGO)]
    assert steps(*reports) == {"a": 0.01, "b": 1.0}


def test_other_kinds_and_what_is_not_known_change_nothing() -> None:
    old = decode("old", 1.0, LONG_AGO)
    prefill = decode("p", 0.01, 0.0, role=P)
    unknown = decode("d", 0.0, 0.0)
    assert steps(old, prefill, unknown) == {"old": 1.0, "p": 0.01, "d": 0.0}


def test_each_rate_has_an_age_of_its_own() -> None:
    both = WorkerRates(prefill_tokens_per_s=10.0, decode_step_s=1.0, pull_bytes_per_s=10.0)
    old = Report("old", D, both, LearnedAt(prefill_s=0.0, decode_s=LONG_AGO, pull_s=LONG_AGO))
    fast = WorkerRates(prefill_tokens_per_s=1000.0, decode_step_s=0.01, pull_bytes_per_s=1000.0)
    new = Report("new", D, fast, LearnedAt(prefill_s=0.0, decode_s=0.0, pull_s=LONG_AGO))
    aged = aged_rates([old, new])["old"]
    assert (aged.prefill_tokens_per_s, aged.pull_bytes_per_s) == (10.0, 10.0)
    assert aged.decode_step_s == pytest.approx(0.01)


def test_the_median_is_the_middle_or_between_the_two() -> None:
    assert [median([3.0]), median([2.0, 8.0]), median([1.0, 2.0, 9.0])] == [3.0, 4.0, 2.0]


# --- in a fleet ---


def load(step_s: float, num_steps: int, **changes: Any) -> WorkerLoad:
    rates = WorkerRates(decode_step_s=step_s, num_decode_steps=num_steps)
    return WorkerLoad(num_available_blocks=10, rates=rates, **changes)


def slow_and_other() -> Fleet:
    fleet = make_fleet("slow", "other", role=D)
    fleet.report(0.0, "slow", load(1.0, 3))
    fleet.report(0.0, "other", load(0.01, 3))
    return fleet


def seen(fleet: Fleet, worker_id: str = "slow") -> float:
    return next(one.speed.decode_step_s for one in fleet.views(8, []) if one.worker_id == worker_id)


def test_a_worker_without_steps_is_seen_as_the_others_after_a_while() -> None:
    fleet = slow_and_other()
    assert (seen(fleet), seen(fleet, "other")) == (1.0, 0.01)
    for half_seconds in range(1, 120):
        fleet.report(0.5 * half_seconds, "slow", load(1.0, 3))
        fleet.report(0.5 * half_seconds, "other", load(0.01, 3 + half_seconds))
    assert seen(fleet) == fleet.rates()["slow"].decode_step_s == pytest.approx(0.01, rel=0.01)
    assert seen(fleet, "other") == pytest.approx(0.01, rel=0.01)
    fleet.report(60.0, "slow", load(1.0, 4))
    assert seen(fleet) == 1.0


def test_a_fleet_that_is_idle_forgets_nothing() -> None:
    fleet = slow_and_other()
    for half_seconds in range(1, 120):
        fleet.report(0.5 * half_seconds, "slow", load(1.0, 3))
        fleet.report(0.5 * half_seconds, "other", load(0.01, 3))
    assert (seen(fleet), seen(fleet, "other")) == (1.0, 0.01)


def test_a_worker_that_changes_its_role_is_held_against_its_new_kind() -> None:
    fleet = slow_and_other()
    fleet.report(60.0, "other", load(0.01, 4))
    assert seen(fleet) < 0.1
    fleet.report(60.0, "other", load(0.01, 4, role=P))
    assert seen(fleet) == 1.0
