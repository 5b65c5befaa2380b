"""Linear layers of 8-bit integers against exact integer arithmetic: every build, and torch alone."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.quantization.methods import OnlineQuantization
from baton_engine.checkpoint.quantization.online import quantize
from baton_engine.models import linear
from baton_engine.models.linear import Linear
from baton_kernels.cpu import int8
from baton_kernels.cpu.int8 import PackedInt8Product, TorchInt8Product, quantize_rows, quantize_with
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.quantized import QuantizedProduct
from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.variants import (
    AMX,
    AVX2,
    AVX512,
    EMULATED,
    PLAIN,
    CpuVariant,
    cpu_flags,
    usable_variants,
)
from baton_kernels.interface.kernels import VECTORISED, Function, LayerKernels, Product
from baton_kernels.interface.quantized import QuantizedWeight
from baton_kernels.selection import select_kernels
from tests.unit.kernels.cpu_builds import EMULATED_AMX, load

pytestmark = pytest.mark.usefixtures("one_thread")

EMULATED_AVX512 = next(variant for variant in EMULATED if variant.name == "avx512-emulated")
builds = pytest.mark.parametrize(
    "variant", [AMX, AVX512, AVX2, PLAIN, EMULATED_AMX, EMULATED_AVX512], ids=lambda variant: variant.name
)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
TINY = 1e-40


def _name(variant: CpuVariant | None) -> str:
    return "torch" if variant is None else variant.name


def avx2_build(variant: CpuVariant) -> CpuLibrary:
    """Skips the test where this CPU lacks the instructions."""
    if "avx2" not in cpu_flags():
        pytest.skip("this CPU lacks AVX2")
    return load(variant)


def as_codes(weight: Tensor) -> QuantizedWeight:
    return quantize(weight, OnlineQuantization.INT8)


def make_product(variant: CpuVariant | None, weight: Tensor, bias: Tensor | None = None) -> Product:
    codes = as_codes(weight)
    return PackedInt8Product(avx2_build(variant), codes, bias) if variant else TorchInt8Product(codes, bias)


def make_rows(num_rows: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))


def exact(x: Tensor, weight: Tensor) -> Tensor:
    """The scaled sums of the codes' products: in float64 these are integers without rounding."""
    (codes, scales), (weight_codes, weight_scales) = quantize_rows(x), quantize_rows(weight)
    sums = codes.double() @ weight_codes.double().T
    return sums.float() * weight_scales * scales[:, None]


def odd_rows(size: int) -> Tensor:
    """Rows with one extreme each, and an ordinary one."""
    rows = make_rows(9, size)
    for row, value in enumerate((0.0, TINY, 1e-38, 1e38, -torch.inf, torch.nan)):
        rows[row] = 0.0 if row < 3 else rows[row]
        rows[row, size // 2] = value
    rows[6] = -3.0
    rows[7] = torch.arange(size) - size / 2  # halves between two codes among them
    return rows


@builds
@dtypes
@pytest.mark.parametrize("size", [1, 3, 64, 127, 896])
def test_every_build_makes_the_codes_of_torch(variant: CpuVariant, dtype: torch.dtype, size: int) -> None:
    library = load(variant)
    rows = torch.cat((odd_rows(size), make_rows(40, size))).to(dtype)
    for x in (rows, rows[:1], rows[:0], rows.repeat(1, 2)[:, size // 2 : size // 2 + size], rows.T[:5]):
        codes, scales = quantize_with(library, x)
        expected_codes, expected_scales = quantize_rows(x)
        assert torch.equal(codes, expected_codes)
        torch.testing.assert_close(scales, expected_scales, rtol=0, atol=0, equal_nan=True)


@dtypes
def test_an_error_is_at_most_half_a_scale_and_what_is_not_finite_stays_so(dtype: torch.dtype) -> None:
    rows = torch.cat((odd_rows(50), make_rows(200, 50) * 1e3)).to(dtype)
    codes, scales = quantize_rows(rows)
    is_finite = rows.isfinite().all(dim=1)
    assert torch.equal(scales.isfinite(), is_finite)
    assert is_finite.sum() == len(rows) - 2
    errors = (rows.double() - codes.double() * scales.double()[:, None]).abs()[is_finite]
    assert (errors <= scales.double()[is_finite, None] / 2 * (1 + 1e-4) + 4e-37).all()
    assert codes.abs().max() == 127
    assert (codes[is_finite & (scales > 0)].abs().amax(dim=1) == 127).all()
    assert not codes[~is_finite].any()


@pytest.mark.parametrize("variant", [None, AMX, AVX512, AVX2, PLAIN, EMULATED_AMX], ids=_name)
@settings(max_examples=25, deadline=None)
@given(
    num_rows=st.integers(0, 19),
    in_features=st.integers(1, 140),
    out_features=st.integers(1, 70),
    seed=st.integers(0, 9),
    is_extreme=st.booleans(),
)
def test_products_are_those_of_exact_integers(
    variant: CpuVariant | None,
    num_rows: int,
    in_features: int,
    out_features: int,
    seed: int,
    is_extreme: bool,
) -> None:
    x, weight = make_rows(num_rows, in_features, seed), make_rows(out_features, in_features, seed + 1)
    if is_extreme:
        x, weight = x.sign(), weight.sign()
    out = make_product(variant, weight)(x)
    assert (out.dtype, out.shape) == (torch.float32, (num_rows, out_features))
    assert torch.equal(out, exact(x, weight))


@pytest.mark.parametrize(
    "variant", [None, AMX, AVX512, AVX2, PLAIN, EMULATED_AMX, EMULATED_AVX512], ids=_name
)
def test_stored_codes_may_be_the_least_of_8_bits(variant: CpuVariant | None) -> None:
    """Compressed-tensors divides by 127.5, so that -128 is a code of its weights."""
    codes = torch.randint(-128, 128, (70, 132), generator=torch.Generator().manual_seed(5)).to(torch.int8)
    codes[3] = -128
    weight = replace(as_codes(torch.ones(70, 132)), codes=codes, scales=torch.ones(70, 1))
    x = torch.cat((make_rows(9, 132), torch.ones(1, 132), -torch.ones(1, 132)))
    layer = (
        PackedInt8Product(avx2_build(variant), weight, None) if variant else TorchInt8Product(weight, None)
    )
    row_codes, scales = quantize_rows(x)
    assert torch.equal(layer(x), (row_codes.double() @ codes.double().T).float() * scales[:, None])


@builds
@dtypes
@pytest.mark.parametrize("function", VECTORISED, ids=str)
def test_gates_are_multiplied_before_they_are_rounded(
    variant: CpuVariant, dtype: torch.dtype, function: Function
) -> None:
    weight, bias = make_rows(128, 131), make_rows(1, 128, 3)[0]
    layer, x = PackedInt8Product(avx2_build(variant), as_codes(weight), bias), make_rows(21, 131).to(dtype)
    expected = LayerKernels().apply_mul(function, layer(x.float()))
    for num_rows in (1, 8, 21):
        out = layer.gated(function, x[:num_rows])
        assert out.dtype is dtype
        rtol = 2**-8 if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(out.float(), expected[:num_rows], rtol=rtol, atol=1e-5)
    assert layer.gates(function)
    assert not layer.gates(Function.GELU)
    assert not PackedInt8Product(avx2_build(variant), as_codes(weight[:80]), None).gates(function)


@pytest.mark.parametrize("variant", [None, AMX, AVX512, AVX2, EMULATED_AMX], ids=_name)
def test_sums_too_large_for_float32_are_exact_before_they_are_rounded(variant: CpuVariant | None) -> None:
    for size in (1040, 1041, 5003):
        x, weight = torch.ones(3, size), torch.ones(5, size)
        x[1], weight[1] = -1.0, -1.0
        x[2, ::2], weight[2, ::7] = 0.3, -0.2
        assert torch.equal(make_product(variant, weight)(x), exact(x, weight))


@pytest.mark.parametrize("variant", [None, AMX, AVX512, PLAIN], ids=_name)
@dtypes
def test_a_row_is_computed_alike_in_any_batch_and_biases_are_added(
    variant: CpuVariant | None, dtype: torch.dtype
) -> None:
    weight, bias = make_rows(45, 131), make_rows(1, 45, 3)[0]
    layer, x = make_product(variant, weight, bias), make_rows(37, 262).to(dtype)[:, 40:171]
    out = layer(x)
    assert out.dtype is dtype
    rtol = 2**-7 if dtype is torch.bfloat16 else 1e-6
    torch.testing.assert_close(out, (exact(x, weight) + bias).to(dtype), rtol=rtol, atol=1e-6)
    for row in range(len(x)):
        assert torch.equal(layer(x[row : row + 1])[0], out[row])
    assert torch.equal(layer(x.flip(0)).flip(0), out)
    wide = functional.linear(x.double(), weight.double(), bias.double())
    assert (out.double() - wide).norm() < 0.02 * wide.norm()


@pytest.mark.parametrize("variant", [None, AMX, AVX512, AVX2, EMULATED_AMX], ids=_name)
def test_a_row_or_an_output_that_is_not_finite_is_nan_and_touches_no_other(
    variant: CpuVariant | None,
) -> None:
    x, weight = odd_rows(64), make_rows(40, 64)
    weight[7, 5] = torch.inf
    out = make_product(variant, weight)(x)
    is_nan = torch.zeros_like(out, dtype=torch.bool)
    is_nan[4:6], is_nan[:, 7] = True, True
    assert torch.equal(out.isnan(), is_nan)
    assert not out[:2, :7].any(), "zeros, and numbers too small for a scale"


def test_builds_with_avx2_multiply_codes_and_torch_does_for_others() -> None:
    weight = make_rows(64, 64)
    for name in ("auto", *(variant.name for variant in usable_variants(cpu_flags())), "torch"):
        library = load_build(name)
        layer = select_kernels("cpu", cpu_kernels=name).layers.quantized_product(
            as_codes(weight), None, torch.float32
        )
        if library is None:
            assert layer is None
        elif "avx2" not in library.variant.needs:
            assert type(layer) is QuantizedProduct
        else:
            assert type(layer) is PackedInt8Product
            assert 64 * 64 <= layer.packed_bytes < 64 * 64 * 1.3


def test_a_weight_whose_sums_may_not_fit_is_refused() -> None:
    assert int8.MAX_IN_FEATURES * 127 * 128 < 2**31 <= (int8.MAX_IN_FEATURES + 1) * 127 * 128
    with pytest.raises(ValueError, match="a weight has 132105 inputs; allowed: at most 132104"):
        Linear(as_codes(torch.zeros(1, 132105)))


def test_without_a_build_torch_computes_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    weight, x = make_rows(5, 7), make_rows(3, 7, seed=1)
    linear._warn_of_torch.cache_clear()
    with caplog.at_level(logging.WARNING):
        layers = [Linear(as_codes(weight)) for _ in range(2)]
    for layer in layers:
        assert torch.equal(layer(x), TorchInt8Product(as_codes(weight), None)(x))
    assert [record.getMessage() for record in caplog.records] == [
        "quantized layers (int8) are computed by torch, slower than unquantized ones"
    ]
