"""Quantized linear layers on a CPU: every build beside a float64 product of the values of the codes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton_kernels.cpu.int8 import quantize_rows
from baton_kernels.cpu.layers import CpuLayers
from baton_kernels.cpu.quantized import QuantizedProduct, can_pair_inputs
from baton_kernels.cpu.variants import CpuVariant
from baton_kernels.interface.kernels import Function, LayerKernels
from baton_kernels.interface.quantized import Element, InputRounding, QuantizedWeight
from baton_kernels.reference.quantized_product import TorchQuantizedProduct
from tests.unit.kernels.cpu_builds import BUILDS, builds, load
from tests.unit.kernels.quantized_weights import CASES, ROUNDINGS, WeightCase, expected_product, make_weight

pytestmark = pytest.mark.slow

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
ROWS = (0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 50, 200)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def rows_of(num_rows: int, case: WeightCase, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num_rows, case.in_features, generator=generator).to(dtype)


def expected_of(
    variant: CpuVariant, weight: QuantizedWeight, bias: torch.Tensor | None, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`expected_product`; AMX multiplies codes as `quantize_rows` has them, which parts ties another way."""
    if not variant.has_tiles or weight.input_rounding != ROUNDINGS["int8_token"]:
        return expected_product(weight, bias, x)
    codes, scales = quantize_rows(x)
    return expected_product(replace(weight, input_rounding=None), bias, codes * scales[:, None])


@builds
@dtypes
@cases
def test_each_build_is_near_the_float64_product_and_computes_a_row_alike_in_any_company(
    variant: CpuVariant, dtype: torch.dtype, case: WeightCase
) -> None:
    for sizes in ({}, {"in_features": 192, "out_features": 131}):
        case = replace(case, dtype=dtype, **sizes)
        weight, bias = make_weight(case, torch.Generator().manual_seed(0))
        product = QuantizedProduct(load(variant), weight, bias, dtype)
        x = rows_of(max(ROWS), case, dtype)
        whole = product(x)
        expected, magnitude = expected_of(variant, weight, bias, x)
        # The table of NF4 is rounded to the dtype of the rows, and terms may cancel.
        least = 2**-8 if (dtype, case.element) == (torch.bfloat16, Element.NF4) else 2**-20
        error = (whole.double() - expected).abs()
        assert (error <= TOLERANCE[dtype] * expected.abs() + least * magnitude).all()
        for num_rows in ROWS:
            assert torch.equal(product(x[:num_rows]), whole[:num_rows])
        assert torch.equal(product(x[20:21])[0], whole[20])


@builds
@dtypes
@pytest.mark.parametrize("name", ["int4", "e4m3"])
def test_rows_of_many_panels_are_computed_as_those_of_few(
    variant: CpuVariant, dtype: torch.dtype, name: str
) -> None:
    """One or two rows take several panels at once where every thread has some."""
    case = replace(CASES[name], dtype=dtype, rounding=None, out_features=18 * 64 + 3)
    weight, bias = make_weight(case, torch.Generator().manual_seed(0))
    product = QuantizedProduct(load(variant), weight, bias, dtype)
    x = rows_of(7, case, dtype)
    whole = product(x)
    expected, magnitude = expected_of(variant, weight, bias, x)
    assert ((whole.double() - expected).abs() <= TOLERANCE[dtype] * expected.abs() + 2**-20 * magnitude).all()
    for num_rows in (1, 2, 3):
        assert torch.equal(product(x[:num_rows]), whole[:num_rows])


@builds
@dtypes
@pytest.mark.parametrize(("group_size", "rounding"), [(134, None), (132, ROUNDINGS["int8_token"])])
def test_a_group_whose_largest_part_is_odd_is_cut_between_pairs_or_quads(
    variant: CpuVariant, dtype: torch.dtype, group_size: int, rounding: InputRounding | None
) -> None:
    sizes = {"group_size": group_size, "in_features": 3 * group_size, "out_features": 64}
    case = WeightCase(element=Element.INT8, rounding=rounding, dtype=dtype, **sizes)
    weight, bias = make_weight(case, torch.Generator().manual_seed(0))
    x = rows_of(3, case, dtype)
    expected, magnitude = expected_of(variant, weight, bias, x)
    error = (QuantizedProduct(load(variant), weight, bias, dtype)(x).double() - expected).abs()
    assert (error <= TOLERANCE[dtype] * expected.abs() + 2**-20 * magnitude).all()


@builds
@dtypes
def test_gates_are_multiplied_before_they_are_rounded(variant: CpuVariant, dtype: torch.dtype) -> None:
    case = replace(CASES["int4"], dtype=dtype, out_features=256)
    weight, bias = make_weight(case, torch.Generator().manual_seed(0))
    product = QuantizedProduct(load(variant), weight, bias, dtype)
    wide = QuantizedProduct(load(variant), weight, bias, torch.float32)
    x = rows_of(21, case, dtype)
    expected = LayerKernels().apply_mul(Function.SILU, wide(x.float()))
    assert product.gates(Function.SILU)
    assert not product.gates(Function.GELU)
    for num_rows in (1, 2, 3, 6, 21):
        out = product.gated(Function.SILU, x[:num_rows])
        assert out.dtype is dtype
        rtol = 2**-7 if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(out.float(), expected[:num_rows], rtol=rtol, atol=1e-4)


@cases
def test_torch_computes_the_same_where_there_is_no_build(case: WeightCase) -> None:
    weight, bias = make_weight(replace(case, dtype=torch.float32), torch.Generator().manual_seed(0))
    x = rows_of(5, case, torch.float32)
    expected, magnitude = expected_product(weight, bias, x)
    error = (TorchQuantizedProduct(weight, bias)(x).double() - expected).abs()
    assert (error <= 2e-6 * expected.abs() + 2**-20 * magnitude).all()


@builds
def test_a_step_reads_the_bytes_of_the_codes_and_scales(variant: CpuVariant) -> None:
    case = WeightCase(element=Element.INT4, group_size=128, in_features=512, out_features=256)
    weight, _ = make_weight(case, torch.Generator().manual_seed(0))
    product = CpuLayers(load(variant)).quantized_product(weight, None, torch.bfloat16)
    assert product is not None
    assert weight.num_bytes <= product.packed_bytes <= 1.1 * weight.num_bytes


@builds
@pytest.mark.parametrize("name", ["e4m3", "int8", "mxfp4", "nvfp4"])
def test_rows_that_are_not_finite_stay_so_and_touch_no_other(variant: CpuVariant, name: str) -> None:
    layers = CpuLayers(load(variant))
    weight, _ = make_weight(CASES[name], torch.Generator().manual_seed(0))
    product = layers.quantized_product(weight, None, torch.bfloat16)
    assert product is not None
    x = rows_of(4, CASES[name], torch.bfloat16)
    clean = product(x)
    for lost in (torch.nan, torch.inf):
        x[1, 3] = lost
        out = product(x)
        assert out[1].isnan().all()
        assert torch.equal(out[[0, 2, 3]], clean[[0, 2, 3]])


@builds
@dtypes
def test_weights_that_are_not_numbers_make_their_output_so_and_no_other(
    variant: CpuVariant, dtype: torch.dtype
) -> None:
    case = replace(CASES["e4m3"], rounding=None, dtype=dtype)
    weight, bias = make_weight(case, torch.Generator().manual_seed(0))
    x = rows_of(7, case, dtype)
    for bias_or_none in (bias, None):
        clean = QuantizedProduct(load(variant), weight, bias_or_none, dtype)(x)
        codes = weight.codes.clone()
        codes[2, 5], codes[17, 0] = 0x7F, 0xFF
        out = QuantizedProduct(load(variant), replace(weight, codes=codes), bias_or_none, dtype)(x)
        others = [index for index in range(case.out_features) if index not in (2, 17)]
        assert out[:, [2, 17]].isnan().all()
        assert torch.equal(out[:, others], clean[:, others])


def test_odd_groups_are_left_to_torch() -> None:
    case = WeightCase(element=Element.INT8, group_size=5, in_features=30)
    weight, _ = make_weight(case, torch.Generator().manual_seed(0))
    assert not can_pair_inputs(weight)
    assert can_pair_inputs(make_weight(replace(case, group_size=6), torch.Generator())[0])
    assert CpuLayers(load(BUILDS[-1])).quantized_product(weight, None, torch.bfloat16) is None
