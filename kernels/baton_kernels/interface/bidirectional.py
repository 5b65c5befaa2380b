"""Attention of the tokens of a prompt to each other, without a cache, in torch on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

WINDOW_QUERIES: Final = 256
"""Queries that are computed together where they see a window: the keys of all of them are scored."""


def bidirectional_attention(
    q: Tensor, k: Tensor, v: Tensor, seq_lens: Sequence[int], scale: float, window: int | None
) -> Tensor:
    """`AttentionKernels.bidirectional`; neighbours of one length are computed by one call."""
    if q.shape[1] != k.shape[1]:
        k, v = (side.repeat_interleave(q.shape[1] // side.shape[1], dim=1) for side in (k, v))
    pieces, start = [], 0
    for seq_len, group in groupby(seq_lens):
        shape = sum(1 for _ in group), seq_len
        stop = start + math.prod(shape)
        own_q, own_k, own_v = (
            side[start:stop].view(*shape, *q.shape[1:]).transpose(1, 2) for side in (q, k, v)
        )
        if window is None or seq_len <= window + 1:
            attended = scaled_dot_product_attention(own_q, own_k, own_v, scale=scale)
        else:
            attended = _attend_windows(own_q, own_k, own_v, scale, window)
        pieces.append(attended.transpose(1, 2).flatten(0, 1))
        start = stop
    return torch.cat(pieces)


def _attend_windows(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    """Attention of sequences `[num_seqs, num_heads, num_tokens, head_dim]` over windows around tokens."""
    num_tokens, pieces = q.shape[2], []
    positions = torch.arange(num_tokens, device=q.device)
    for start in range(0, num_tokens, WINDOW_QUERIES):
        rows = slice(start, min(start + WINDOW_QUERIES, num_tokens))
        seen = slice(max(0, rows.start - window), min(rows.stop + window, num_tokens))
        mask = (positions[rows, None] - positions[None, seen]).abs() <= window
        sides = q[:, :, rows], k[:, :, seen], v[:, :, seen]
        pieces.append(scaled_dot_product_attention(*sides, attn_mask=mask, scale=scale))
    return torch.cat(pieces, dim=2)
