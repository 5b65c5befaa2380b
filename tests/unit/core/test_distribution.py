"""Counts of values by bounds."""

from __future__ import annotations

import pytest

from baton_core.distribution import Distribution


def test_values_count_for_the_first_bound_that_is_not_below_them() -> None:
    values = Distribution((0.0, 1.0, 2.5))
    assert (values.count, values.total) == (0, 0.0)
    for value in (-1.0, 1.0, 1.1, 7.0):
        values.add(value)
    values.add(2.5, 3)
    assert values.cumulative() == [("0.0", 1), ("1.0", 2), ("2.5", 6), ("+Inf", 7)]
    assert values.total == pytest.approx(15.6)
    assert values.count == 7
