"""The sampling kernel against the torch sampler, in the interpreter: not near, but the same token."""

from __future__ import annotations

from typing import Any

import pytest

from baton_kernels.interface.sampling import Refusal
from tests.unit.kernels.interpreted_sampling import CASES
from tests.unit.kernels.interpreter import run_interpreted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    return run_interpreted("interpreted_sampling")


@pytest.mark.parametrize("name", CASES)
def test_both_samplers_draw_the_same_tokens(name: str, drawn: dict[str, Any]) -> None:
    assert drawn[name]["triton"] == drawn[name]["torch"]


def test_the_boundary_of_the_filters_is_drawn_from(drawn: dict[str, Any]) -> None:
    assert len(set(drawn["boundary"]["triton"])) > 1


def test_a_row_that_is_not_finite_is_refused_and_leaves_the_others_theirs(drawn: dict[str, Any]) -> None:
    broken = drawn["broken"]["triton"]
    assert broken == drawn["broken"]["torch"]
    assert broken[0] == 700
    assert [broken[row] for row in (1, 2, 4, 5)] == [
        Refusal.NOT_A_NUMBER,
        Refusal.INFINITE,
        Refusal.NOTHING_LEFT,
        Refusal.NOT_A_NUMBER,
    ]
