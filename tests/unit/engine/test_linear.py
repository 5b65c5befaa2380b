"""Packed linear layers against `functional.linear`."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
import torch
from torch.nn import functional

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.linear import Linear, load_head
from baton_kernels.cpu import onednn, packed
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.packed import PackedProduct, packed_product, takes
from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.variants import AVX2, AVX512, PLAIN, VARIANTS, CpuVariant, cpu_flags, usable_variants
from baton_kernels.interface.kernels import VECTORISED, Function, LayerKernels
from baton_kernels.selection import select_kernels
from tests.unit.kernels.cpu_builds import builds, load

TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.3}


PACKING: Final = tuple(variant.name for variant in usable_variants(cpu_flags()))
"""Builds that this CPU runs, the fastest first."""


@pytest.fixture(params=[PACKING[0], "oneDNN"])
def kernels(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> LayerKernels:
    """Kernels that pack small weights too, or oneDNN that does."""
    monkeypatch.setattr(packed, "MIN_PACKED_ELEMENTS", 0)
    monkeypatch.setattr(onednn, "MIN_REORDERED_ELEMENTS", 0)
    return LayerKernels() if request.param == "oneDNN" else layers_of(request.param)


@pytest.fixture
def without_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    onednn.can_pack.cache_clear()
    yield
    onednn.can_pack.cache_clear()


def layers_of(name: str) -> LayerKernels:
    return select_kernels("cpu", cpu_kernels=name).layers


def library_of(name: str) -> CpuLibrary:
    library = load_build(name)
    assert library is not None
    return library


def make_weight(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def packed_layer(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedProduct:
    return PackedProduct(library_of(PACKING[0]), weight, bias)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("out_features", [192, 150])
def test_rows_are_multiplied_by_a_packed_weight_alone_or_together(
    dtype: torch.dtype, has_bias: bool, out_features: int
) -> None:
    weight = make_weight(out_features, 1344, dtype=dtype)
    bias = make_weight(out_features, dtype=dtype) if has_bias else None
    layer = packed_layer(weight, bias)
    x = make_weight(500, 1361, dtype=dtype)[:, 10:1354]
    expected = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for num_rows in (1, 2, 6, 7, 12, 13, 25, 192, 193, 500):
        out = layer(x[:num_rows])
        torch.testing.assert_close(out.double(), expected[:num_rows], rtol=0, atol=TOLERANCE[dtype] * 2)
        assert torch.equal(out[-1:], layer(x[num_rows - 1 : num_rows]))
    assert layer(x[:0]).shape == (0, out_features)
    assert torch.equal(layer(x.T.contiguous().T), layer(x))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("function", VECTORISED, ids=str)
def test_gates_are_multiplied_before_they_are_rounded(dtype: torch.dtype, function: Function) -> None:
    weight, bias = make_weight(384, 640, dtype=dtype) / 25, make_weight(384, dtype=dtype)
    layer, x = packed_layer(weight, bias), make_weight(200, 640, dtype=dtype)
    outputs = functional.linear(x.double(), weight.double(), bias.double())
    expected = LayerKernels().apply_mul(function, outputs)
    assert layer.gates(function)
    for num_rows in (1, 7, 200):
        out = layer.gated(function, x[:num_rows])
        assert out.dtype == dtype
        torch.testing.assert_close(
            out.double(), expected[:num_rows], rtol=2**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-4
        )


def test_which_outputs_are_gated_in_one_pass() -> None:
    assert not packed_layer(make_weight(184, 64), None).gates(Function.SILU)
    assert not packed_layer(make_weight(128, 64), None).gates(Function.GELU)
    weight, x = make_weight(600, 512), make_weight(9, 512)
    for out_features in (512, 600):
        layer = Linear(weight[:out_features], kernels=layers_of(PACKING[0]))
        expected = LayerKernels().apply_mul(Function.SILU, layer(x))
        torch.testing.assert_close(layer.gated(Function.SILU, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@builds
def test_every_build_multiplies_packed_weights(variant: CpuVariant, dtype: torch.dtype) -> None:
    weight, bias = make_weight(150, 1344, dtype=dtype), make_weight(150, dtype=dtype)
    layer, x = PackedProduct(load(variant), weight, bias), make_weight(200, 1344, dtype=dtype)
    exact = functional.linear(x.double(), weight.double(), bias.double())
    for num_rows in (1, 13, 200):
        out = layer(x[:num_rows])
        rtol = 2**-8 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(out.double(), exact[:num_rows], rtol=rtol, atol=1e-3)


def test_which_builds_take_which_weights() -> None:
    for dtype, left_alone in ((torch.bfloat16, []), (torch.float32, [PLAIN])):
        weight = make_weight(64, 64, dtype=dtype)
        assert [variant for variant in VARIANTS if not takes(variant, weight)] == left_alone
    small = make_weight(32, 64, dtype=torch.bfloat16)
    assert [variant for variant in VARIANTS if takes(variant, small)] == [AVX512, AVX2, PLAIN]
    assert not any(takes(variant, make_weight(63, 64)) for variant in VARIANTS)
    assert not any(takes(variant, make_weight(64, 64).double()) for variant in VARIANTS)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_packed_layer_equals_the_plain_one_in_batches_of_any_size(
    kernels: LayerKernels, dtype: torch.dtype, has_bias: bool
) -> None:
    if type(kernels) is LayerKernels and not onednn.can_pack(dtype):
        pytest.skip(f"oneDNN packs no {dtype} for this CPU")
    for out_features, in_features in ((64, 48), (97, 130)):
        weight = make_weight(out_features, in_features, dtype=dtype)
        bias = make_weight(out_features, dtype=dtype) if has_bias else None
        layer = Linear(weight, bias, kernels)
        assert layer.packed_bytes
        for num_rows in (0, 1, 2, 7, 33, 200):
            x = make_weight(num_rows, in_features, dtype=dtype)
            out = layer(x)
            assert (out.dtype, out.shape) == (dtype, (num_rows, out_features))
            torch.testing.assert_close(out, functional.linear(x, weight, bias), rtol=0, atol=TOLERANCE[dtype])


def test_a_packed_layer_takes_views_other_threads_and_inference_mode(kernels: LayerKernels) -> None:
    weight = make_weight(32, 40)
    layer, x = Linear(weight, kernels=kernels), make_weight(6, 3, 80)[:, 1, :40]
    expected = functional.linear(x, weight)

    @torch.inference_mode()
    def call(_: int) -> torch.Tensor:
        return layer(x)

    with ThreadPoolExecutor(3) as threads:
        for out in threads.map(call, range(6)):
            torch.testing.assert_close(out, expected, rtol=0, atol=1e-4)


def test_the_original_weight_is_freed(kernels: LayerKernels) -> None:
    weight = make_weight(32, 40)
    original = weakref.ref(weight)
    layer = Linear(weight, kernels=kernels)
    del weight
    gc.collect()
    assert original() is None
    assert layer.packed_bytes >= 32 * 40 * 4


def test_small_weights_are_not_packed_and_for_onednn_only_large_ones() -> None:
    assert not Linear(make_weight(63, 64), kernels=layers_of(PACKING[0])).packed_bytes
    assert Linear(make_weight(512, 512)).packed_bytes
    assert not Linear(make_weight(512, 511)).packed_bytes


def test_small_bfloat16_weights_are_packed_where_a_build_has_no_arithmetic_for_them() -> None:
    weight = make_weight(32, 64, dtype=torch.bfloat16)
    for name in PACKING:
        layer = Linear(weight, kernels=layers_of(name))
        assert bool(layer.packed_bytes) is not library_of(name).variant.has_dot


@builds
def test_inputs_that_fill_no_tile_or_pair_are_left_to_others(variant: CpuVariant) -> None:
    library = load(variant)
    multiple = library.packed_layout(torch.bfloat16).input_multiple
    assert multiple == (32 if variant.has_tiles else 2 if variant.has_dot else 1)
    assert packed_product(library, make_weight(128, 64, dtype=torch.bfloat16), None) is not None
    if multiple > 1:
        assert packed_product(library, make_weight(128, 63, dtype=torch.bfloat16), None) is None


@pytest.mark.parametrize("name", [name for name in PACKING if "bf16" not in name])
@pytest.mark.parametrize("has_bias", [True, False])
def test_widened_bfloat16_is_rounded_once_and_rows_do_not_touch(name: str, has_bias: bool) -> None:
    for out_features, in_features in ((64, 48), (97, 131), (3, 1), (1, 17)):
        weight = make_weight(out_features, in_features, dtype=torch.bfloat16)
        bias = make_weight(out_features, dtype=torch.bfloat16) if has_bias else None
        layer = Linear(weight, bias, layers_of(name))
        for num_rows in (0, 1, 3, 33, 70):
            x = make_weight(num_rows, 2 * in_features, dtype=torch.bfloat16)[:, :in_features]
            out = layer(x)
            exact = functional.linear(
                x.double(), weight.double(), bias.double() if bias is not None else None
            )
            assert (out.dtype, out.shape) == (torch.bfloat16, exact.shape)
            torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-4)
            assert all(torch.equal(layer(x[row : row + 1])[0], out[row]) for row in range(num_rows))


def test_without_a_build_small_bfloat16_weights_are_left_to_torch() -> None:
    weight, x = make_weight(64, 48, dtype=torch.bfloat16), make_weight(5, 48, dtype=torch.bfloat16)
    assert torch.equal(Linear(weight)(x), functional.linear(x, weight))


@pytest.mark.usefixtures("without_operators")
def test_without_the_private_operators_layers_are_plain_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weight, x = make_weight(512, 512), make_weight(3, 512)
    with caplog.at_level(logging.WARNING):
        layers = [Linear(weight), Linear(weight)]
    for layer in layers:
        assert torch.equal(layer(x), functional.linear(x, weight))
    assert len(caplog.records) == 1
    assert "not packed, which is slower" in caplog.text


def test_a_tied_head_is_a_packed_copy_that_counts_as_weights(
    model_folder: Callable[[str], Path], kernels: LayerKernels
) -> None:
    weights = WeightReader(model_folder("llama"), torch.float32)
    embedding = weights.load("model.embed_tokens.weight", (512, 64))
    before = weights.loaded_bytes
    head, x = load_head(weights, "unused", (512, 64), embedding, kernels), make_weight(2, 64)
    assert weights.loaded_bytes == before + head.packed_bytes > before
    torch.testing.assert_close(head(x), functional.linear(x, embedding), rtol=0, atol=1e-4)
    own = load_head(weights, "lm_head", (512, 64), None, kernels)
    assert not torch.allclose(own(x), head(x), atol=1e-3)
