"""Sinks in the softmax: torch and every C++ build against the float64 reference and Transformers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from baton_kernels.cpu.attention import CpuAttention
from baton_kernels.cpu.graph_replay import GraphReplay
from baton_kernels.cpu.invariant import InvariantCpuAttention
from baton_kernels.cpu.variants import PLAIN, CpuVariant
from baton_kernels.interface.cache_dtype import UNSCALED, LayerKVScales
from baton_kernels.interface.kernels import AttentionBatch, AttentionKernels
from baton_kernels.reference.torch_attention import TorchAttention
from tests.attention_reference import attention_reference
from tests.unit.kernels.cpu_builds import builds, load
from tests.unit.kernels.paged_batches import LAYER, PagedBatch, make_paged_batch
from tests.unit.kernels.test_cpu_attention import ROUNDING, TOLERANCE, is_v_transposed, transpose_v

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SLICES = ((1, 1), (1, 97), (3, 3), (9, 70), (1, 64), (2, 9), (1, 300))
E4M3 = torch.float8_e4m3fn
EXTREMES = (-torch.inf, -1e4, -30.0, 30.0, 1e4)

dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def make_sinks(num_q_heads: int) -> Tensor:
    """Sinks `[num_q_heads]` like scores, but for a few far from them."""
    sinks = torch.randn(num_q_heads, generator=torch.Generator().manual_seed(2)) * 2
    count = min(len(EXTREMES), num_q_heads // 2)
    sinks[-2 * count :: 2] = torch.tensor(EXTREMES[:count])
    return sinks


def kernels_of(variant: CpuVariant, dtype: torch.dtype) -> tuple[AttentionKernels, AttentionKernels]:
    library = load(variant)
    is_transposed = is_v_transposed(variant, dtype)
    return CpuAttention(library, is_v_transposed=is_transposed), InvariantCpuAttention(library)


def attend(
    kernels: AttentionKernels,
    step: PagedBatch,
    sinks: Tensor | None,
    softcap: float | None = None,
    scales: LayerKVScales = UNSCALED,
) -> Tensor:
    pool = transpose_v(step.kv_pool) if kernels.v_axes == "HDT" else step.kv_pool
    q, k, v = step.q, step.k.to(step.q.dtype), step.v.to(step.q.dtype)
    return kernels.attention(q, k, v, pool, LAYER, step.batch, step.scale, softcap, scales, sinks)


def check(
    kernels: AttentionKernels,
    step: PagedBatch,
    softcap: float | None = None,
    scales: LayerKVScales = UNSCALED,
) -> None:
    compare(kernels, step, expected_of(step, softcap, scales), softcap, scales)


def expected_of(step: PagedBatch, softcap: float | None, scales: LayerKVScales = UNSCALED) -> Tensor:
    sinks = make_sinks(step.q.shape[1])
    return attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale, softcap, scales, sinks)


def compare(
    kernels: AttentionKernels,
    step: PagedBatch,
    expected: Tensor,
    softcap: float | None = None,
    scales: LayerKVScales = UNSCALED,
) -> None:
    out = attend(kernels, step, make_sinks(step.q.shape[1]), softcap, scales)
    assert out.dtype == step.q.dtype
    atol = TOLERANCE[out.dtype] * max(1, scales.v)
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[out.dtype], atol=atol)


def test_the_reference_equals_transformers() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    step, sinks = make_paged_batch([(1, 9)], num_kv_heads=2, group=4), make_sinks(8)
    table = step.batch.block_tables[0].long()
    k, v = (
        step.kv_pool[table, LAYER, side].transpose(0, 1).flatten(1, 2)[None, :, :9].double()
        for side in (0, 1)
    )
    module = nn.Module()
    module.num_key_value_groups, module.sinks = 4, sinks.double()
    q = step.q.double().transpose(0, 1)[None]
    expected, _ = eager_attention_forward(module, q, k, v, attention_mask=None, scaling=step.scale)
    out = attention_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale, sinks=sinks)
    torch.testing.assert_close(out, expected[0], rtol=0, atol=1e-12)


@dtypes
def test_torch_equals_the_reference(dtype: torch.dtype) -> None:
    for window, softcap in ((None, None), (20, None), (40, 3.0)):
        check(TorchAttention(), make_paged_batch(SLICES, window=window, group=7, dtype=dtype), softcap)


@cache
def steps(dtype: torch.dtype) -> list[tuple[PagedBatch, float | None, Tensor]]:
    """Steps with their softcaps and expected results, made once for all builds."""
    made: list[tuple[PagedBatch, float | None]] = []
    for head_dim, group in ((64, 8), (17, 20)):
        shape = {"head_dim": head_dim, "group": group, "block_size": 32, "dtype": dtype}
        for window, softcap in ((None, None), (40, None), (None, 3.0)):
            made.append((make_paged_batch(SLICES, window=window, **shape), softcap))
    made.append((make_paged_batch([(1, 1025), (1, 257)], num_kv_heads=1, group=4, dtype=dtype), None))
    return [(step, softcap, expected_of(step, softcap)) for step, softcap in made]


@builds
@dtypes
def test_each_build_equals_the_reference(variant: CpuVariant, dtype: torch.dtype) -> None:
    for kernels in kernels_of(variant, dtype):
        for step, softcap, expected in steps(dtype):
            compare(kernels, step, expected, softcap)


@builds
@dtypes
def test_a_cache_of_8_bits_equals_the_reference(variant: CpuVariant, dtype: torch.dtype) -> None:
    scales = LayerKVScales(k=0.37, v=2.9)
    for kernels in kernels_of(variant, dtype):
        for window in (None, 40):
            step = make_paged_batch(SLICES, window=window, group=8, block_size=32, dtype=dtype, kv_dtype=E4M3)
            check(kernels, step, scales=scales)


@builds
@dtypes
def test_a_sink_of_minus_infinity_changes_no_bit(variant: CpuVariant, dtype: torch.dtype) -> None:
    step = make_paged_batch([(1, 300), (9, 70), (3, 3)], group=7, block_size=32, dtype=dtype)
    for kernels in kernels_of(variant, dtype):
        out = attend(kernels, step, torch.full((14,), -torch.inf))
        assert torch.equal(out, attend(kernels, step, None))


@builds
@dtypes
def test_a_prompt_gets_the_same_bits_however_it_is_cut(variant: CpuVariant, dtype: torch.dtype) -> None:
    kernels = InvariantCpuAttention(load(variant))
    whole, sinks = make_paged_batch([(90, 90)], group=8, block_size=16, dtype=dtype), make_sinks(16)
    together = attend(kernels, whole, sinks)
    for start, stop in ((0, 1), (1, 80), (80, 90)):
        batch = AttentionBatch.build(
            query_lens=[stop - start],
            context_lens=[stop],
            block_tables=whole.batch.block_tables.tolist(),
            block_size=16,
        )
        piece = replace(whole, batch=batch, q=whole.q[start:stop])
        assert torch.equal(attend(kernels, piece, sinks), together[start:stop])


def test_a_replay_reads_the_sinks_anew() -> None:
    step, sinks = make_paged_batch([(1, 40), (1, 300)], group=8), make_sinks(16)
    kernels, changed = CpuAttention(load(PLAIN)), torch.zeros(16)
    graph, out = GraphReplay.record(lambda: attend(kernels, step, sinks))
    sinks.copy_(changed)
    graph.replay()
    assert torch.equal(out, attend(kernels, step, changed))


def test_padding_gives_zeros() -> None:
    step = make_paged_batch([(1, 40), (1, 1)])
    step = replace(step, batch=replace(step.batch, seq_lens=torch.zeros(2, dtype=torch.int32)))
    for kernels in kernels_of(PLAIN, torch.float32):
        assert not attend(kernels, step, make_sinks(4)).any()


@pytest.mark.parametrize(
    "sinks", [torch.zeros(3), torch.zeros(4, 1), torch.zeros(4).double(), torch.zeros(8)[::2]]
)
def test_other_sinks_are_refused(sinks: Tensor) -> None:
    step = make_paged_batch([(1, 4)])
    for kernels in (TorchAttention(), *kernels_of(PLAIN, torch.float32)):
        with pytest.raises(ValueError, match=r"^sinks are torch\..* allowed: torch\.float32 of shape \[4\]"):
            attend(kernels, step, sinks)
