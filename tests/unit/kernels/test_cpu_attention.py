"""The C++ kernels against the float64 reference, each build that this CPU runs or emulates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from baton_kernels.cpu.attention import CpuAttention
from baton_kernels.cpu.variants import AMX, PLAIN, CpuVariant
from baton_kernels.interface.kernels import AttentionBatch
from baton_kernels.reference.torch_attention import TorchAttention
from tests.attention_reference import attention_reference, write_kv_reference
from tests.unit.kernels.cpu_builds import EMULATED_AMX, builds, load
from tests.unit.kernels.paged_batches import LAYER, PagedBatch, make_paged_batch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8}
"""Tolerance relative to a result."""
SHAPES = [(64, 7), (80, 1), (128, 4), (256, 2), (17, 20), (64, 3), (80, 8), (24, 5), (128, 6)]
"""Head sizes with numbers of query heads for each KV head."""
SLICES = ((1, 1), (1, 97), (3, 3), (1, 64), (2, 9), (1, 33))


def is_v_transposed(variant: CpuVariant, dtype: torch.dtype) -> bool:
    return variant.has_tiles and dtype == torch.bfloat16


def transpose_v(kv_pool: Tensor) -> Tensor:
    """The pool with each head's V laid out as `[head_dim, block_size]`."""
    transposed = kv_pool.clone()
    v = kv_pool[:, :, 1]
    transposed[:, :, 1] = v.transpose(-1, -2).reshape(v.shape)
    return transposed


def transpose_back(kv_pool: Tensor) -> Tensor:
    plain = kv_pool.clone()
    v = kv_pool[:, :, 1]
    plain[:, :, 1] = v.reshape(*v.shape[:-2], v.shape[-1], v.shape[-2]).transpose(-1, -2)
    return plain


def attention(variant: CpuVariant, step: PagedBatch, softcap: float | None = None) -> Tensor:
    """In the layout that a worker would choose for the variant."""
    transposed = is_v_transposed(variant, step.kv_pool.dtype)
    kernels = CpuAttention(load(variant), is_v_transposed=transposed)
    pool = transpose_v(step.kv_pool) if transposed else step.kv_pool
    return kernels.attention(step.q, step.k, step.v, pool, LAYER, step.batch, step.scale, softcap)


def assert_equals_reference(variant: CpuVariant, step: PagedBatch, softcap: float | None = None) -> None:
    out = attention(variant, step, softcap)
    expected = attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale, softcap)
    assert out.dtype == step.q.dtype
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[out.dtype], atol=TOLERANCE[out.dtype])


@cache
def reference_of(
    slices: tuple[tuple[int, int], ...], softcap: float | None, **shape: Any
) -> tuple[PagedBatch, Tensor]:
    """A step, which nobody writes to, and what attention over it is: computed once for all builds."""
    step = make_paged_batch(slices, **shape)
    return step, attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale, softcap)


def check(
    variant: CpuVariant,
    slices: tuple[tuple[int, int], ...] = SLICES,
    softcap: float | None = None,
    **shape: Any,
) -> None:
    load(variant)
    step, expected = reference_of(slices, softcap, **shape)
    out = attention(variant, step, softcap)
    assert out.dtype == step.q.dtype
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[out.dtype], atol=TOLERANCE[out.dtype])


dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@builds
@dtypes
def test_head_and_group_sizes_equal_the_reference(variant: CpuVariant, dtype: torch.dtype) -> None:
    for head_dim, group in SHAPES:
        check(variant, head_dim=head_dim, group=group, block_size=32, dtype=dtype)


@builds
@dtypes
def test_block_sizes_equal_the_reference(variant: CpuVariant, dtype: torch.dtype) -> None:
    for block_size in (1, 3, 16, 48, 64):
        check(variant, block_size=block_size, dtype=dtype)


@builds
@dtypes
def test_windows_and_caps_equal_the_reference(variant: CpuVariant, dtype: torch.dtype) -> None:
    for window in (None, 1, 6, 40, 300):
        for softcap in (None, 3.0):
            check(variant, (*SLICES, (1, 300)), softcap, window=window, block_size=32, dtype=dtype)


@builds
@dtypes
def test_a_long_context_in_several_parts_equals_the_reference(
    variant: CpuVariant, dtype: torch.dtype
) -> None:
    for window in (None, 700):
        shape = {"num_kv_heads": 1, "head_dim": 64, "block_size": 32, "dtype": dtype}
        check(variant, ((1, 1025), (1, 257)), window=window, **shape)


@builds
def test_large_scores_of_either_sign_stay_exact(variant: CpuVariant) -> None:
    load(variant)
    step = make_paged_batch([(1, 70)], head_dim=64)
    step = replace(step, q=step.q * 1e3)
    for softcap in (None, 30.0):
        expected = attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale, softcap)
        out = attention(variant, step, softcap)
        # Scores are some thousands, and float32 knows them to within a few ten-thousandths.
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-3)


@builds
@dtypes
def test_a_sequence_gets_the_same_numbers_in_any_company_and_on_any_threads(
    variant: CpuVariant, dtype: torch.dtype
) -> None:
    contexts = [600, 5, 257, 1]
    step = make_paged_batch([(1, n) for n in contexts], head_dim=64, group=7, block_size=32, dtype=dtype)
    torch.set_num_threads(2)
    together = attention(variant, step)
    torch.set_num_threads(1)
    for seq, context_len in enumerate(contexts):
        alone = PagedBatch(
            batch=AttentionBatch.build(
                query_lens=[1],
                context_lens=[context_len],
                block_tables=[step.batch.block_tables[seq].tolist()],
                block_size=32,
            ),
            kv_pool=step.kv_pool,
            q=step.q[seq : seq + 1],
            k=step.k[seq : seq + 1],
            v=step.v[seq : seq + 1],
        )
        assert torch.equal(attention(variant, alone)[0], together[seq])


@builds
@dtypes
def test_writing_equals_the_reference_and_leaves_other_layers_alone(
    variant: CpuVariant, dtype: torch.dtype
) -> None:
    step = make_paged_batch([(1, 6), (5, 9), (150, 150)], dtype=dtype, head_dim=20)
    # As a model gives them: views of one projection.
    fused = torch.cat((step.q, step.k + 1, step.v - 1), dim=1)
    _, k, v = fused.split((step.q.shape[1], step.k.shape[1], step.v.shape[1]), dim=1)
    expected = step.kv_pool.clone()
    write_kv_reference(k, v, expected, LAYER, step.batch)
    transposed = is_v_transposed(variant, dtype)
    pool = transpose_v(step.kv_pool) if transposed else step.kv_pool
    CpuAttention(load(variant), is_v_transposed=transposed).write(k, v, pool, LAYER, step.batch)
    written = transpose_back(pool) if transposed else pool
    torch.testing.assert_close(written, expected, rtol=0, atol=0, equal_nan=True)
    assert written[:, 1 - LAYER].isnan().all()


@pytest.mark.parametrize("variant", [PLAIN, EMULATED_AMX], ids=lambda variant: variant.name)
@dtypes
def test_chunks_over_a_prefix_equal_the_reference(variant: CpuVariant, dtype: torch.dtype) -> None:
    slices = ((9, 50), (2, 150), (13, 13), (33, 33), (5, 5))
    for window in (None, 1, 12, 40):
        for head_dim, group in ((64, 7), (17, 2)):
            check(variant, slices, window=window, head_dim=head_dim, group=group, dtype=dtype)
    check(variant, slices, softcap=3.0, dtype=dtype)


@pytest.mark.parametrize("variant", [AMX, EMULATED_AMX], ids=lambda variant: variant.name)
def test_prompts_in_tiles_equal_the_reference_and_themselves_however_they_are_cut(
    variant: CpuVariant,
) -> None:
    kernels = CpuAttention(load(variant), is_v_transposed=True)
    for head_dim, group, window, block_size in (
        (64, 7, None, 32),
        (96, 1, 150, 64),
        (80, 3, None, 16),
        (256, 2, 9, 32),
    ):
        shape = {"window": window, "head_dim": head_dim, "group": group, "block_size": block_size}
        step = make_paged_batch([(40, 560)], num_kv_heads=1, dtype=torch.bfloat16, **shape)
        expected = attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale)
        pool, q, table = transpose_v(step.kv_pool), step.q, step.batch.block_tables.tolist()
        whole = kernels.attention(q, step.k, step.v, pool, LAYER, step.batch, step.scale)
        torch.testing.assert_close(whole.double(), expected, rtol=2**-8, atol=TOLERANCE[torch.bfloat16])
        for start, stop in ((0, 2), (2, 29), (29, 40)):
            batch = AttentionBatch.build(
                query_lens=[stop - start],
                context_lens=[520 + stop],
                block_tables=table,
                block_size=block_size,
                window=window,
            )
            own = slice(start, stop)
            piece = kernels.attention(q[own], step.k[own], step.v[own], pool, LAYER, batch, step.scale)
            assert torch.equal(piece, whole[own])


def slices_of_a_step() -> st.SearchStrategy[list[tuple[int, int]]]:
    lengths = st.tuples(st.just(1) | st.integers(1, 5), st.integers(0, 40) | st.just(255))
    return st.lists(lengths.map(lambda pair: (pair[0], sum(pair))), min_size=1, max_size=3)


@settings(max_examples=20)
@given(
    slices=slices_of_a_step(),
    group=st.sampled_from([1, 2, 7, 9, 20]),
    num_kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([1, 8, 16, 17, 40]),
    block_size=st.sampled_from([1, 3, 16, 32]),
    window=st.none() | st.integers(1, 100),
    softcap=st.none() | st.just(5.0),
    dtype=st.sampled_from(list(TOLERANCE)),
    variant=st.sampled_from([PLAIN, EMULATED_AMX]),
)
def test_any_batch_equals_the_reference(
    slices: Sequence[tuple[int, int]],
    group: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
    variant: CpuVariant,
) -> None:
    step = make_paged_batch(
        slices,
        window=window,
        group=group,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    assert_equals_reference(variant, step, softcap)


def test_what_torch_writes_the_kernels_read() -> None:
    step = make_paged_batch([(1, 40), (6, 6)], head_dim=64)
    TorchAttention().write(step.k + 1, step.v + 1, step.kv_pool, LAYER, step.batch)
    moved = replace(step, k=step.k + 1, v=step.v + 1)
    assert_equals_reference(PLAIN, moved)


def test_a_padding_slice_is_written_nowhere_and_gives_zeros() -> None:
    step = make_paged_batch([(1, 40), (1, 1)], head_dim=64)
    batch = replace(
        step.batch, slot_mapping=torch.tensor([-1, -1]), seq_lens=torch.zeros(2, dtype=torch.int32)
    )
    kernels, before = CpuAttention(load(PLAIN)), step.kv_pool.clone()
    kernels.write(step.k, step.v, step.kv_pool, LAYER, batch)
    torch.testing.assert_close(step.kv_pool, before, rtol=0, atol=0, equal_nan=True)
    out = kernels.attention(step.q, step.k, step.v, step.kv_pool, LAYER, batch, step.scale)
    assert not out.any()


def test_a_layout_or_dtype_that_a_build_cannot_read_is_refused() -> None:
    step = make_paged_batch([(1, 4)])
    with pytest.raises(RuntimeError, match="does not read the layout"):
        CpuAttention(load(PLAIN), is_v_transposed=True).attention(
            step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale
        )
    with pytest.raises(ValueError, match=r"dtype of the KV pool is torch\.float16; allowed"):
        CpuAttention(load(PLAIN)).write(step.k, step.v, step.kv_pool.half(), LAYER, step.batch)


def test_only_tiles_keep_v_transposed() -> None:
    assert AMX.has_tiles
    assert CpuAttention(load(PLAIN)).v_axes == "HTD"
    assert CpuAttention(load(PLAIN), is_v_transposed=True).v_axes == "HDT"
