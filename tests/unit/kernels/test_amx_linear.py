"""Linear layers with AMX's tiles: each row's bits are its own, and emulated ones are the hardware's."""

from __future__ import annotations

from typing import Final

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.packed import PackedProduct
from baton_kernels.cpu.variants import AMX, CpuVariant
from baton_kernels.interface.kernels import Function
from tests.unit.kernels.cpu_builds import EMULATED_AMX, load

pytestmark = pytest.mark.slow

tile_builds = pytest.mark.parametrize("variant", [AMX, EMULATED_AMX], ids=lambda variant: variant.name)
DEEP_INPUTS: Final = 9_600
"""Inputs of which few rows fit the second cache, so that 70 rows take them a block at a time."""


def make(*shape: int, seed: int = 0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (numbers / shape[-1] ** 0.5).bfloat16()


@tile_builds
@pytest.mark.parametrize(
    ("out_features", "in_features"), [(32, 32), (16, 64), (150, 480), (48, DEEP_INPUTS)], ids=str
)
def test_a_row_has_the_same_bits_in_any_batch(
    variant: CpuVariant, out_features: int, in_features: int
) -> None:
    weight, bias = make(out_features, in_features), make(out_features, seed=1)
    layer, x = PackedProduct(load(variant), weight, bias), 30 * make(70, in_features, seed=2)
    exact = functional.linear(x.double(), weight.double(), bias.double())
    alone = torch.cat([layer(x[row : row + 1]) for row in range(len(x))])
    torch.testing.assert_close(alone.double(), exact, rtol=2**-8, atol=2e-3)
    for first, last in ((0, 2), (3, 19), (0, 17), (0, 32), (5, 38), (0, 70)):
        assert torch.equal(layer(x[first:last]), alone[first:last])


@tile_builds
def test_gates_and_factors_come_from_panels_far_apart(variant: CpuVariant) -> None:
    weight = make(96, 224)
    layer, x = PackedProduct(load(variant), weight, None), 30 * make(40, 224, seed=2)
    gate, up = functional.linear(x.double(), weight.double()).chunk(2, dim=-1)
    assert layer.gates(Function.SILU)
    out = layer.gated(Function.SILU, x)
    torch.testing.assert_close(out.double(), functional.silu(gate) * up, rtol=2**-7, atol=1e-3)
    assert torch.equal(out[7:8], layer.gated(Function.SILU, x[7:8]))


@tile_builds
def test_rows_behind_the_last_are_neither_read_nor_written(variant: CpuVariant) -> None:
    layer = PackedProduct(load(variant), make(32, 64), None)
    x = make(20, 64, seed=2)
    expected = layer(x[:5])
    x[5:] = float("nan")
    assert torch.equal(layer(x[:5]), expected)


def test_emulated_tiles_give_the_bits_of_the_hardware() -> None:
    hardware, emulated = load(AMX), load(EMULATED_AMX)
    weight, bias, x = make(96, 352), make(96, seed=1), 30 * make(70, 352, seed=2)
    for rows in (x[:1], x[:33], x):
        products = [PackedProduct(library, weight, bias) for library in (hardware, emulated)]
        assert torch.equal(*(product(rows) for product in products))
        assert torch.equal(*(product.gated(Function.SILU, rows) for product in products))
