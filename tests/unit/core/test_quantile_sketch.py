"""Percentiles in bounded memory."""

from __future__ import annotations

import math
import random

import pytest

from baton_core.quantile_sketch import MAX_BUCKETS, MAX_VALUE, MIN_VALUE, RELATIVE_ERROR, QuantileSketch


def test_no_value_has_no_percentile() -> None:
    assert QuantileSketch().quantile(0.5) is None


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_a_percentile_is_within_the_relative_error_of_the_exact_nearest_rank(share: float) -> None:
    draw = random.Random(7)
    values = [draw.lognormvariate(-2.0, 1.5) for _ in range(1000)]
    sketch = QuantileSketch()
    for value in values:
        sketch.add(value)
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert sketch.quantile(share) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.001)


def test_the_rank_is_exact_at_the_boundary() -> None:
    sketch = QuantileSketch()
    sketch.add(0.1, 99)
    sketch.add(10.0)
    assert sketch.quantile(0.99) == pytest.approx(0.1, rel=RELATIVE_ERROR)
    assert sketch.quantile(0.991) == pytest.approx(10.0, rel=RELATIVE_ERROR)


def test_merged_sketches_are_one_of_all_values() -> None:
    whole, one, other = QuantileSketch(), QuantileSketch(), QuantileSketch()
    for number in range(1, 201):
        whole.add(number / 100)
        (one if number % 3 else other).add(number / 100)
    one.merge(other)
    assert one.count == whole.count == 200
    assert [one.quantile(share) for share in (0.1, 0.5, 0.99)] == [
        whole.quantile(share) for share in (0.1, 0.5, 0.99)
    ]


def test_what_is_removed_leaves_nothing_behind() -> None:
    kept, gone, whole = QuantileSketch(), QuantileSketch(), QuantileSketch()
    kept.add(0.1, 3)
    gone.add(0.1)
    gone.add(7.0, 5)
    whole.merge(kept)
    whole.merge(gone)
    whole.remove(gone)
    assert (whole.count, whole.num_buckets) == (3, 1)
    assert whole.quantile(1.0) == kept.quantile(1.0)


def test_memory_is_bounded_whatever_the_values() -> None:
    sketch = QuantileSketch()
    for exponent in range(-2000, 2000):
        sketch.add(1.01**exponent)
    for extreme in (0.0, -1.0, 1e300):
        sketch.add(extreme)
    assert sketch.num_buckets <= MAX_BUCKETS
    assert sketch.quantile(0.0) == pytest.approx(MIN_VALUE, rel=RELATIVE_ERROR)
    assert sketch.quantile(1.0) == pytest.approx(MAX_VALUE, rel=RELATIVE_ERROR)
