"""Arrival schedules: how many come per second, how evenly, and always the same for a seed."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import pytest

from baton_bench.arrivals import Pace, Ramp, RampShape


def gaps(pace: Pace, count: int, seed: int = 1) -> list[float]:
    return [after - before for before, after in pairwise(pace.arrival_times(count, random.Random(seed)))]


def test_without_a_rate_all_come_at_once() -> None:
    assert Pace().arrival_times(3, random.Random(0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [1e-9, 1e-5, 0.2, 1.0, 50.0])
@pytest.mark.parametrize("rate", [0.5, 40.0])
def test_every_seed_offers_the_same_load(rate: float, burstiness: float) -> None:
    pace = Pace(rate=rate, burstiness=burstiness)
    for seed in range(3):
        times = pace.arrival_times(101, random.Random(seed))
        assert times[0] == 0
        assert times == sorted(times)
        assert times[-1] == pytest.approx(100 / rate)


def test_a_seed_gives_the_same_times_and_another_seed_others() -> None:
    pace = Pace(rate=3.0)
    assert gaps(pace, 20) == gaps(pace, 20)
    assert gaps(pace, 20) != gaps(pace, 20, seed=2)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_the_burstiness_says(burstiness: float) -> None:
    """A gamma distribution of shape k has a coefficient of variation of 1 / sqrt(k)."""
    values = gaps(Pace(rate=10.0, burstiness=burstiness), 2_000)
    variation = statistics.pstdev(values) / statistics.fmean(values)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


def test_a_single_request_comes_at_once() -> None:
    ramp = Ramp(shape=RampShape.LINEAR, start_rps=1.0, end_rps=2.0)
    for rate in (5.0, math.inf, ramp):
        assert Pace(rate=rate).arrival_times(1, random.Random(0)) == [0.0]


@pytest.mark.parametrize(("shape", "middle"), [(RampShape.LINEAR, 50.5), (RampShape.EXPONENTIAL, 10.0)])
def test_a_ramp_goes_from_one_rate_to_the_other(shape: RampShape, middle: float) -> None:
    ramp = Ramp(shape=shape, start_rps=1.0, end_rps=100.0)
    assert [ramp.rate(progress) for progress in (0.0, 0.5, 1.0)] == pytest.approx([1.0, middle, 100.0])
    even = gaps(Pace(rate=ramp, burstiness=1e6), 1001)
    assert even[-1] == pytest.approx(1 / 100, rel=0.01)
    assert even[499] == pytest.approx(1 / middle, rel=0.02)
