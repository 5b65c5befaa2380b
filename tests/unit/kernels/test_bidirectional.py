"""Attention of the tokens of a prompt to each other against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.interface.bidirectional import WINDOW_QUERIES
from baton_kernels.selection import select_kernels

SCALE = 0.3
SEQ_LENS = [3, WINDOW_QUERIES + 50, 1, 17, 17]


def reference(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Return the attention of every sequence in float64, under one mask of all tokens."""
    seqs = torch.repeat_interleave(torch.arange(len(SEQ_LENS)), torch.tensor(SEQ_LENS))
    positions = torch.arange(len(q))
    sees = seqs[:, None] == seqs
    if window is not None:
        sees &= (positions[:, None] - positions).abs() <= window
    scores = torch.einsum("ihd,jhd->hij", q.double(), k.double()) * SCALE
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
