"""The batch-invariant kernels of a CPU: right within rounding, and the same bits in any company."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.invariant import InvariantCpuAttention, InvariantCpuLayers
from baton_kernels.cpu.variants import AVX2, PLAIN, CpuVariant
from baton_kernels.interface.kernels import AttentionBatch, Function, LayerKernels
from tests.attention_reference import attention_reference
from tests.unit.kernels.cpu_builds import builds, load
from tests.unit.kernels.paged_batches import LAYER, PagedBatch, make_paged_batch
from tests.unit.kernels.test_bidirectional import reference

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
CONTEXT = 130

dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def make_rows(num_rows: int, size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def batches_of(rows: Tensor, seed: int) -> list[tuple[list[int], Tensor]]:
    """Random choices of rows in random order, from one row to more than all, with their numbers."""
    dice = random.Random(seed)
    chosen = [dice.choices(range(len(rows)), k=count) for count in (1, 2, 7, 13, 33, len(rows) + 60)]
    return [(numbers, rows[numbers]) for numbers in chosen]


@builds
@dtypes
def test_a_linear_layer_computes_a_row_alike_in_any_batch(variant: CpuVariant, dtype: torch.dtype) -> None:
    layers = InvariantCpuLayers(load(variant))
    for in_size, out_size, has_bias in ((96, 64, True), (600, 45, False), (17, 3, True)):
        weight = make_rows(out_size, in_size, dtype, seed=1) * in_size**-0.5
        bias = make_rows(1, out_size, dtype, seed=2)[0] if has_bias else None
        product, rows = layers.product(weight, bias), make_rows(60, in_size, dtype)
        alone = torch.cat([product(row[None]) for row in rows])
        wide = functional.linear(rows.double(), weight.double(), None if bias is None else bias.double())
        assert_close(alone, wide)
        for numbers, batch in batches_of(rows, in_size):
            assert torch.equal(product(batch), alone[numbers])


@builds
@dtypes
def test_norms_and_functions_compute_a_row_alike_in_any_batch(
    variant: CpuVariant, dtype: torch.dtype
) -> None:
    layers, plain = InvariantCpuLayers(load(variant)), LayerKernels()
    rows, weight, bias = (
        make_rows(40, 70, dtype),
        make_rows(1, 70, dtype, 1)[0],
        make_rows(1, 70, dtype, 2)[0],
    )
    for name, arguments in (
        ("rms_norm", (weight, 1e-6)),
        ("rms_norm", (weight.float(), 1e-6)),
        ("layer_norm", (weight, bias, 1e-5)),
        ("layer_norm", (None, None, 1e-5)),
    ):
        alone = torch.cat([getattr(layers, name)(row[None], *arguments) for row in rows])
        assert_close(alone, getattr(plain, name)(rows, *arguments))
        for numbers, batch in batches_of(rows, 3):
            assert torch.equal(getattr(layers, name)(batch, *arguments), alone[numbers])
    for function in Function:
        alone = torch.cat([layers.apply_mul(function, row[None]) for row in rows])
        assert_close(alone, plain.apply_mul(function, rows))
        for numbers, batch in batches_of(rows, 3):
            assert torch.equal(layers.apply_mul(function, batch), alone[numbers])
        alone = torch.cat([layers.apply(function, row[None]) for row in rows])
        assert_close(alone, plain.apply(function, rows))
        for numbers, batch in batches_of(rows, 4):
            assert torch.equal(layers.apply(function, batch), alone[numbers])


def test_functions_are_right_far_from_zero() -> None:
    layers, x = InvariantCpuLayers(load(PLAIN)), torch.tensor([[-1e30, -90.0, -20.0, -0.0, 20.0, 90.0, 1e30]])
    for function in (Function.SILU, Function.GELU, Function.GELU_TANH, Function.TANH):
        assert_close(layers.apply(function, x).nan_to_num(nan=7), LayerKernels().apply(function, x.clone()))


def test_a_view_is_computed_like_its_copy() -> None:
    layers = InvariantCpuLayers(load(PLAIN))
    wide = make_rows(6, 80, torch.float32)
    view, product = wide[:, 8:48], layers.product(make_rows(5, 40, torch.float32), None)
    assert torch.equal(product(view), product(view.contiguous()))
    weight = torch.ones(20)
    heads = wide.view(6, 4, 20)[:, 1:3]
    assert torch.equal(
        layers.rms_norm(heads, weight, 1e-6), layers.rms_norm(heads.contiguous(), weight, 1e-6)
    )
    assert torch.equal(layers.apply(Function.TANH, heads), layers.apply(Function.TANH, heads.contiguous()))


def piece_of(step: PagedBatch, start: int, count: int) -> AttentionBatch:
    """Tokens of the one sequence of `step`, as a slice of a step of its own."""
    return replace(
        step.batch,
        positions=step.batch.positions[start : start + count],
        query_start=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([start + count], dtype=torch.int32),
        query_lens=(count,),
        context_lens=(start + count,),
    )


@builds
@dtypes
@pytest.mark.parametrize(
    ("window", "softcap", "head_dim", "group"),
    [(None, None, 64, 7), (41, None, 80, 1), (None, 1.5, 24, 2), (1, None, 16, 13)],
    ids=["full", "window", "capped", "window of one"],
)
def test_attention_computes_a_token_alike_however_its_prompt_is_cut(
    variant: CpuVariant,
    dtype: torch.dtype,
    window: int | None,
    softcap: float | None,
    head_dim: int,
    group: int,
) -> None:
    kernels = InvariantCpuAttention(load(variant))
    step = make_paged_batch(
        [(CONTEXT, CONTEXT)], window=window, head_dim=head_dim, group=group, block_size=16, dtype=dtype
    )
    whole = kernels.attention(step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale, softcap)
    assert_close(
        whole, attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale, softcap).to(dtype)
    )
    for size in (1, 7, 32, 100):
        for start in range(0, CONTEXT, size):
            batch = piece_of(step, start, min(size, CONTEXT - start))
            q = step.q[start : start + size]
            piece = kernels.attention(q, q, q, step.kv_pool, LAYER, batch, step.scale, softcap)
            assert torch.equal(piece, whole[start : start + size])


@builds
@dtypes
def test_attention_reads_nothing_before_the_window(variant: CpuVariant, dtype: torch.dtype) -> None:
    kernels = InvariantCpuAttention(load(variant))
    slices = [(1, 97), (3, 70), (40, 150), (1, 8)]
    step = make_paged_batch(slices, window=20, group=3, block_size=16, head_dim=24, dtype=dtype)
    found = kernels.attention(step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale)
    assert_close(found, attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale).to(dtype))


@builds
@dtypes
def test_attention_computes_a_sequence_alike_in_any_company(variant: CpuVariant, dtype: torch.dtype) -> None:
    kernels = InvariantCpuAttention(load(variant))
    slices = [(1, 1), (5, 40), (1, 97), (33, 33), (1, 64), (2, 70)]
    step = make_paged_batch(slices, group=3, block_size=32, dtype=dtype)
    whole = kernels.attention(step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale)
    start = 0
    for seq, (query_len, context_len) in enumerate(slices):
        alone = AttentionBatch.build(
            query_lens=[query_len],
            context_lens=[context_len],
            block_tables=[step.batch.block_tables[seq].tolist()],
            block_size=32,
        )
        q = step.q[start : start + query_len]
        attended = kernels.attention(q, q, q, step.kv_pool, LAYER, alone, step.scale)
        assert torch.equal(attended, whole[start : start + query_len])
        start += query_len


def test_the_number_of_threads_changes_nothing() -> None:
    layers, kernels = InvariantCpuLayers(load(AVX2)), InvariantCpuAttention(load(AVX2))
    step = make_paged_batch([(40, 90), (1, 200), (7, 7)], group=7)
    product, rows = (
        layers.product(make_rows(300, 700, torch.float32), None),
        make_rows(130, 700, torch.float32),
    )
    found = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        attended = kernels.attention(step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale)
        found.append((product(rows), attended))
    torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(found[0], found[1], strict=True))
    assert all(torch.equal(one, other) for one, other in zip(found[0], found[2], strict=True))


@builds
@dtypes
def test_prompts_of_encoders_are_attended_to_alike_in_any_company(
    variant: CpuVariant, dtype: torch.dtype
) -> None:
    kernels, length, head_dim = InvariantCpuAttention(load(variant)), 7, 80
    q, k, v = (make_rows(3 * length, head_dim, dtype, seed).view(-1, 1, head_dim) for seed in range(3))
    torch.set_num_threads(2)
    for window in (None, 5):
        together = kernels.bidirectional(q, k, v, [length] * 3, head_dim**-0.5, window)
        assert_close(together, reference(q, k, v, window, [length] * 3, head_dim**-0.5))
        alone = kernels.bidirectional(
            *(side[:length] for side in (q, k, v)), [length], head_dim**-0.5, window
        )
        assert torch.equal(together[:length], alone)
    torch.set_num_threads(1)
