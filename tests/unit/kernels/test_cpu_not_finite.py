"""Numbers that are not finite stay so on their way through the kernels, and reach nobody else: none becomes a
zero.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.cpu.attention import CpuAttention
from baton_kernels.cpu.invariant import InvariantCpuAttention
from baton_kernels.cpu.layers import CpuLayers
from baton_kernels.cpu.packed import PackedProduct
from baton_kernels.cpu.variants import CpuVariant
from baton_kernels.interface.kernels import Function
from tests.unit.kernels.cpu_builds import builds, load
from tests.unit.kernels.paged_batches import LAYER, PagedBatch, make_paged_batch
from tests.unit.kernels.test_cpu_attention import is_v_transposed, transpose_v

pytestmark = pytest.mark.usefixtures("one_thread")

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
values = pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
SLICES = ((1, 97), (5, 40), (1, 33))
SEEN_FROM = {0: 50, 1: 37}
"""By sequence: the position of the token that is broken."""


def break_tokens(step: PagedBatch, side: int, value: float) -> PagedBatch:
    """Break one number of K (side 0) or V (side 1) of KV head 0, in the pool and in what the step writes."""
    block_size = step.kv_pool.shape[4]
    for seq, position in SEEN_FROM.items():
        block = int(step.batch.block_tables[seq, position // block_size])
        step.kv_pool[block, LAYER, side, 0, position % block_size, 3] = value
    own = (step.k, step.v)[side]
    own[1 + SEEN_FROM[1] - 35, 0, 3] = value  # the chunk's tokens are rows 1 to 5, positions 35 to 39
    return step


def is_broken(step: PagedBatch) -> Tensor:
    """The rows and heads that see a broken token, `[num_tokens, num_q_heads]`."""
    seen = torch.zeros(step.q.shape[:2], dtype=torch.bool)
    seen[0, :2] = True
    seen[3:6, :2] = True
    return seen


@builds
@dtypes
@pytest.mark.parametrize("is_invariant", [False, True], ids=["", "invariant"])
@pytest.mark.parametrize("side", [0, 1], ids=["K", "V"])
def test_attention_to_a_token_that_is_no_number_is_none(
    variant: CpuVariant, dtype: torch.dtype, is_invariant: bool, side: int
) -> None:
    transposed = is_v_transposed(variant, dtype) and not is_invariant
    library = load(variant)
    kernels = (
        InvariantCpuAttention(library) if is_invariant else CpuAttention(library, is_v_transposed=transposed)
    )
    step = break_tokens(make_paged_batch(SLICES, dtype=dtype, block_size=32), side, torch.nan)
    pool = transpose_v(step.kv_pool) if transposed else step.kv_pool
    broken = is_broken(step)
    for sinks in (None, torch.zeros(4)):
        out = kernels.attention(step.q, step.k, step.v, pool, LAYER, step.batch, step.scale, sinks=sinks)
        not_finite = ~out.isfinite()
        if side == 0:
            assert torch.equal(not_finite.all(dim=2), broken)
            assert torch.equal(not_finite.any(dim=2), broken)
        else:  # values are weighed by 0 where a token of the same sequence does not see them
            assert not_finite.any(dim=2)[broken].all()
            assert not not_finite[[0, 6]][:, 2:].any()
            assert not not_finite[6].any()


@builds
@dtypes
@values
def test_rows_of_layers_stay_broken_and_alone(variant: CpuVariant, dtype: torch.dtype, value: float) -> None:
    library = load(variant)
    layers = CpuLayers(library)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 256, generator=generator).to(dtype)
    weight = (torch.randn(256, 256, generator=generator) / 16).to(dtype)
    x[2, 7] = value
    norm = layers.rms_norm(x, torch.ones(256, dtype=dtype), 1e-6)
    product = PackedProduct(library, weight, None)
    results = {
        "norm": norm,
        "product": product(x),
        "gated product": product.gated(Function.SILU, x),
        "gate": layers.apply_mul(Function.SILU, torch.cat((x, x), dim=1)),
    }
    for name, result in results.items():
        rows = (~result.isfinite()).any(dim=1).tolist()
        is_silenced = name == "gate" and value == -torch.inf  # silu(-inf) is 0 times -inf
        assert rows == [False, False, True, False] or is_silenced, name
