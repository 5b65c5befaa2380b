"""Norms and activations of the C++ kernels, against float64 and against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.attention import CpuAttention
from baton_kernels.cpu.layers import MAX_COPIED_ROWS, CpuLayers
from baton_kernels.cpu.variants import PLAIN, CpuVariant
from baton_kernels.interface.kernels import AttentionBatch, Function, LayerKernels, rotate
from tests.unit.kernels.cpu_builds import builds, load
from tests.unit.kernels.test_cpu_attention import is_v_transposed, transpose_back, transpose_v

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@builds
@dtypes
def test_norms_equal_float64_with_either_weight(variant: CpuVariant, dtype: torch.dtype) -> None:
    layers = CpuLayers(load(variant))
    for size in (896, 70):
        x, residual = (normal(9, size, dtype=dtype, seed=seed) for seed in range(2))
        weight = normal(size, dtype=dtype, seed=2)
        for gain in (weight, weight.float()):
            assert_close(layers.rms_norm(x, gain, 1e-6), normed(x.double(), gain.double(), 1e-6), dtype)
            both, total = layers.add_rms_norm(x, residual.clone(), gain, 1e-6)
            assert torch.equal(total, x + residual)
            assert_close(both, normed(total.double(), gain.double(), 1e-6), dtype)


@builds
@dtypes
def test_heads_of_a_fused_projection_are_normed_where_they_lie(
    variant: CpuVariant, dtype: torch.dtype
) -> None:
    layers, weight = CpuLayers(load(variant)), normal(24, dtype=dtype, seed=1)
    fused = normal(5, 8 * 24, dtype=dtype)
    heads = fused[:, 48:120].view(5, 3, 24)
    expected = layers.rms_norm(heads.contiguous(), weight, 1e-6)
    assert torch.equal(layers.rms_norm(heads, weight, 1e-6), expected)
    assert torch.equal(layers.rms_norm(heads.transpose(0, 1), weight, 1e-6), expected.transpose(0, 1))
    assert_close(expected, normed(heads.double(), weight.double(), 1e-6), dtype)


@builds
@dtypes
def test_rotary_angles_equal_float64_at_far_positions_too(variant: CpuVariant, dtype: torch.dtype) -> None:
    layers = CpuLayers(load(variant))
    positions = torch.cat((torch.arange(150), torch.tensor([4095, 131_071, 1_000_003])))
    for half in (32, 10):
        inv_freq = (1e4 ** -(torch.arange(half) / half)).repeat(2)
        found = layers.rotary_angles(positions, inv_freq, 1.25, dtype)
        angles = (positions.float()[:, None, None] * inv_freq).double()
        for one, expected in zip(found, (angles.cos(), angles.sin()), strict=True):
            assert_close(one, 1.25 * expected, dtype)
            assert torch.equal(one[..., :half], one[..., half:])
        alone = layers.rotary_angles(positions[7:8], inv_freq, 1.25, dtype)
        assert all(torch.equal(one, whole[7:8]) for one, whole in zip(alone, found, strict=True))


@builds
@dtypes
def test_gated_products_equal_float64(variant: CpuVariant, dtype: torch.dtype) -> None:
    layers = CpuLayers(load(variant))
    for size in (512, 70):
        gate_up = normal(7, 2 * size, dtype=dtype) * 4
        gate, up = gate_up.double().chunk(2, dim=-1)
        assert_close(layers.apply_mul(Function.SILU, gate_up), functional.silu(gate) * up, dtype)
        expected = functional.gelu(gate, approximate="tanh") * up
        assert_close(layers.apply_mul(Function.GELU_TANH, gate_up), expected, dtype)
        exact = LayerKernels().apply_mul(Function.GELU, gate_up)
        assert torch.equal(layers.apply_mul(Function.GELU, gate_up), exact)


@builds
@dtypes
def test_rotation_equals_float64_and_writes_its_slots_alone(variant: CpuVariant, dtype: torch.dtype) -> None:
    transposed = is_v_transposed(variant, dtype)
    kernels = CpuAttention(load(variant), is_v_transposed=transposed)
    batch = AttentionBatch.build(
        query_lens=[3, 1, 1], context_lens=[5, 7, 1], block_tables=[[4, 1], [0, 3], [2]], block_size=4
    )
    batch.slot_mapping[-1] = -1
    for head_dim, rotary_dim in ((64, 64), (80, 20)):
        q, k, v = normal(5, 10, head_dim, dtype=dtype).split((6, 2, 2), 1)
        angles = normal(5, 1, rotary_dim // 2, seed=1).repeat(1, 1, 2)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        pool, expected = torch.full((2, 6, 2, 2, 2, 4, head_dim), torch.nan, dtype=dtype)
        turned_q, turned_k = kernels.rotate_and_write(q, k, v, cos, sin, pool, 1, batch)
        for turned, x in ((turned_q, q), (turned_k, k)):
            assert_close(turned, rotate(x.double(), cos.double(), sin.double()), dtype)
        written = transpose_v(expected) if transposed else expected
        kernels.write(turned_k, v, written, 1, batch)
        both = (transpose_back(side) if transposed else side for side in (pool, written))
        torch.testing.assert_close(*both, rtol=0, atol=0, equal_nan=True)
        assert int(pool.isfinite().sum()) == 4 * 2 * 2 * head_dim


@dtypes
def test_a_row_is_computed_alike_in_any_company_on_any_threads(dtype: torch.dtype) -> None:
    layers, weight = CpuLayers(load(PLAIN)), normal(1024, dtype=dtype, seed=1)
    rows = normal(40, 1024, dtype=dtype)
    torch.set_num_threads(2)
    try:
        together = layers.rms_norm(rows, weight, 1e-6), layers.apply_mul(Function.SILU, rows.repeat(1, 4))
    finally:
        torch.set_num_threads(1)
    alone = [
        (layers.rms_norm(row, weight, 1e-6), layers.apply_mul(Function.SILU, row.repeat(1, 4)))
        for row in rows.split(1)
    ]
    for of_all, of_each in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(of_all, torch.cat(of_each))


@dtypes
@pytest.mark.parametrize("num_rows", [0, 1, 5, MAX_COPIED_ROWS + 1])
def test_rows_are_looked_up_and_copied_bit_by_bit(dtype: torch.dtype, num_rows: int) -> None:
    layers = CpuLayers(load(PLAIN))
    table = normal(40, 24, dtype=dtype)
    rows = torch.arange(num_rows) * 7 % 40
    found = layers.look_up(table, rows)
    assert torch.equal(found, table[rows])
    assert torch.equal(layers.look_up(table, rows[::2]), table[rows[::2]])
    assert layers.look_up(table, rows).data_ptr() != found.data_ptr() or num_rows == 0
    places = torch.zeros(2, num_rows, 24, dtype=dtype)
    layers.copy(found, places[1])
    assert torch.equal(places[1], table[rows])
    assert not places[0].any()
    for strided in (table.t(), table[:, ::2]):
        assert torch.equal(layers.look_up(strided, rows % 24), strided[rows % 24])
        layers.copy(strided[:num_rows], copied := torch.empty_like(strided[:num_rows].contiguous()))
        assert torch.equal(copied, strided[:num_rows])


def test_a_row_that_a_table_has_not_is_an_error() -> None:
    with pytest.raises(IndexError):
        CpuLayers(load(PLAIN)).look_up(normal(4, 8), torch.tensor([1, 4]))
