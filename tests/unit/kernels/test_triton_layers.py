"""The cache and layer kernels against float64, in the interpreter; errors are in units of the tolerance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kernels.interpreted_layers import CACHE_CASES, NORM_CASES
from tests.unit.kernels.interpreter import run_interpreted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def errors() -> dict[str, Any]:
    return run_interpreted("interpreted_layers")


@pytest.mark.parametrize("name", CACHE_CASES)
def test_queries_and_keys_are_rotated_and_the_cache_gets_its_slots_alone(
    name: str, errors: dict[str, Any]
) -> None:
    case = errors[f"cache {name}"]
    assert max(case["q"], case["k"], case["cached"]) <= 1
    assert case["written alike"] == 0


@pytest.mark.parametrize("name", NORM_CASES)
def test_norms_equal_the_reference_with_either_weight(name: str, errors: dict[str, Any]) -> None:
    assert max(errors[f"norm {name}"].values()) <= 1


def test_gated_products_equal_the_reference(errors: dict[str, Any]) -> None:
    assert max(errors["silu"].values()) <= 1


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float16"])
def test_invariant_linear_layers_equal_the_reference_and_compute_rows_alike(
    dtype: str, errors: dict[str, Any]
) -> None:
    assert errors[f"product {dtype}"]["error"] <= 1
    assert errors[f"product {dtype}"]["alone"] == 0


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float16"])
def test_adapters_equal_the_reference_and_compute_rows_alike(dtype: str, errors: dict[str, Any]) -> None:
    case = errors[f"lora {dtype}"]
    assert max(case["linear"], case["embedding"]) <= 1
    assert case["linear alone"] == case["embedding alone"] == 0


def test_conversion_to_e4m3_rounds_as_torch_does_and_saturates(errors: dict[str, Any]) -> None:
    assert errors["e4m3"]["differences"] == 0
