"""Attention of the tokens of a prompt to each other against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.cpu.attention import CpuAttention
from baton_kernels.cpu.variants import CpuVariant
from baton_kernels.interface.bidirectional import WINDOW_QUERIES
from baton_kernels.selection import select_kernels
from tests.unit.kernels.cpu_builds import builds, load

SCALE = 0.3
SEQ_LENS = [3, WINDOW_QUERIES + 50, 1, 17, 17]


def reference(
    q: Tensor, k: Tensor, v: Tensor, window: int | None, seq_lens: list[int] = SEQ_LENS, scale: float = SCALE
) -> Tensor:
    """Return the attention of every sequence in float64, under one mask of all tokens."""
    k, v = (side.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for side in (k, v))
    seqs = torch.repeat_interleave(torch.arange(len(seq_lens)), torch.tensor(seq_lens))
    positions = torch.arange(len(q))
    sees = seqs[:, None] == seqs
    if window is not None:
        sees &= (positions[:, None] - positions).abs() <= window
    scores = torch.einsum("ihd,jhd->hij", q.double(), k.double()) * scale
    weights = scores.masked_fill(~sees, -torch.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v.double())


@pytest.mark.parametrize("window", [None, 5, WINDOW_QUERIES + 20])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_each_token_sees_the_window_of_its_own_sequence(
    window: int | None, dtype: torch.dtype, atol: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(sum(SEQ_LENS), 9, 16, generator=generator).to(dtype)
    q, k, v = fused.chunk(3, dim=1)
    attention = select_kernels("cpu", dtype).attention
    found = attention.bidirectional(q, k, v, SEQ_LENS, SCALE, window)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), reference(q, k, v, window), atol=atol, rtol=0)
    alone = attention.bidirectional(*(side[-17:] for side in (q, k, v)), [17], SCALE, window)
    assert torch.equal(alone, found[-17:])


@pytest.mark.slow
@builds
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_every_build_equals_the_reference(variant: CpuVariant, dtype: torch.dtype, atol: float) -> None:
    attention = CpuAttention(load(variant), is_v_transposed=variant.has_tiles)
    seq_lens = [1, 140, 33, 2]
    generator = torch.Generator().manual_seed(0)
    for head_dim, num_heads, num_kv_heads in ((64, 2, 2), (80, 2, 1), (17, 3, 1), (128, 1, 1)):
        shape = sum(seq_lens), num_heads + 2 * num_kv_heads, head_dim
        fused = torch.randn(shape, generator=generator).to(dtype)
        q, k, v = fused.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        for window in (None, 0, 20):
            found = attention.bidirectional(q, k, v, seq_lens, head_dim**-0.5, window)
            expected = reference(q, k, v, window, seq_lens, head_dim**-0.5)
            torch.testing.assert_close(found.double(), expected, atol=atol, rtol=2**-8)
            alone = attention.bidirectional(
                *(side[1:141] for side in (q, k, v)), [140], head_dim**-0.5, window
            )
            assert torch.equal(alone, found[1:141])
            apart = attention.bidirectional(q, k.contiguous(), v, seq_lens, head_dim**-0.5, window)
            assert torch.equal(apart, found)
