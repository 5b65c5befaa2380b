"""Quantized layers in Triton against float64, in the interpreter; errors are in units of the tolerance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baton_core.errors import InvalidModelError
from baton_engine.models.linear import Linear
from baton_kernels.interface.quantized import Element
from baton_kernels.triton.invariant import InvariantTritonLayers
from baton_kernels.triton.layers import TritonLayers
from tests.unit.kernels.interpreter import run_interpreted
from tests.unit.kernels.quantized_weights import GPU_CASES, ROUNDINGS, WeightCase, make_weight

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return run_interpreted("interpreted_quantized")


@pytest.mark.parametrize("name", GPU_CASES)
def test_products_equal_the_reference_for_few_rows_and_many(name: str, report: dict[str, Any]) -> None:
    errors = dict(report[name])
    assert errors.pop("alone") == 0, "invariant rows are to the bit the same beside others"
    assert errors.pop("lost") == 0, "a row with NaN is NaN"
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("name", ROUNDINGS)
def test_inputs_are_rounded_as_the_reference_does(name: str, report: dict[str, Any]) -> None:
    assert report["roundings"][name] == 0


def test_groups_that_tiles_cannot_be_in_are_left_to_the_engine() -> None:
    case = WeightCase(element=Element.INT4, group_size=40)
    weight, bias = make_weight(case, torch.Generator().manual_seed(0))
    assert TritonLayers().quantized_product(weight, bias, torch.float32) is None
    with pytest.raises(InvalidModelError, match=r"batch_invariant is True .* groups of 40 inputs; allowed: "):
        Linear(weight, bias, InvariantTritonLayers())
