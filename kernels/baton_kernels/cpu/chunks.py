"""Attention of one prompt chunk over what is cached before it and over itself, with torch's flash kernel.

Without a window the two are computed apart, so that no mask of their size exists: the prefix in full, the
chunk causally, joined by their log-sum-exps.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from baton_kernels.reference.torch_attention import attention_masked

_MASKED_QUERIES: Final = 256


def attention_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cached: tuple[Tensor, Tensor],
    window: int | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Return attention `[num_tokens, num_q_heads, head_dim]` of the chunk `q`, shaped like it.

    `k` and `v` `[num_tokens, num_kv_heads, head_dim]` are the chunk's own, `cached` those of all tokens
    before it that its first token sees, both `[num_kv_heads, num_cached, head_dim]`.
    """
    num_tokens, num_kv_heads, head_dim = k.shape
    # Batched over KV heads: [num_kv_heads, heads per KV head, num_tokens, head_dim].
    grouped_q = q.reshape(num_tokens, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    own = k.transpose(0, 1), v.transpose(0, 1)
    num_cached = cached[0].shape[1]
    if softcap is not None or (window is not None and num_cached + num_tokens > window):
        out = _attend_together(grouped_q, own, cached, window, scale, softcap)
    else:
        out = _attend_apart(grouped_q, own, cached, scale)
    return out.permute(2, 0, 1, 3).flatten(1, 2)


def _attend_apart(
    q: Tensor, own: tuple[Tensor, Tensor], cached: tuple[Tensor, Tensor], scale: float
) -> Tensor:
    """Attention over all of `cached` and, causally, `own`.

    `q` and the result are `[num_kv_heads, group_size, num_tokens, head_dim]`.
    """
    out, log_sum = _flash(q, own, scale, is_causal=True)
    if not cached[0].shape[1]:
        return out
    cached_out, cached_log_sum = _flash(q, cached, scale, is_causal=False)
    share = torch.sigmoid(cached_log_sum - log_sum)[..., None]
    return torch.lerp(out.float(), cached_out.float(), share).to(q.dtype)


def _flash(q: Tensor, kv: tuple[Tensor, Tensor], scale: float, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Attention and, for each query, the logarithm of the sum of its weights."""
    k, v = (_repeat_heads(side, q.shape[1]) for side in kv)
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, is_causal=is_causal, scale=scale
    )
    return out, log_sum


def _attend_together(
    q: Tensor,
    own: tuple[Tensor, Tensor],
    cached: tuple[Tensor, Tensor],
    window: int | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention under masks, for `_MASKED_QUERIES` at a time: all scores at once could exceed the memory."""
    k, v = (_repeat_heads(torch.cat(sides, dim=1), q.shape[1]) for sides in zip(cached, own, strict=True))
    num_cached, num_tokens = cached[0].shape[1], q.shape[2]
    queries = torch.arange(num_cached, num_cached + num_tokens)[:, None]
    pieces = []
    for start in range(0, num_tokens, _MASKED_QUERIES):
        rows = slice(start, min(start + _MASKED_QUERIES, num_tokens))
        first = 0 if window is None else max(0, num_cached + start - window + 1)
        seen = slice(first, num_cached + rows.stop)
        keys = torch.arange(seen.start, seen.stop)
        mask = keys <= queries[rows]
        if window is not None:
            mask &= keys > queries[rows] - window
        piece = q[:, :, rows], k[:, :, seen], v[:, :, seen]
        pieces.append(attention_masked(*piece, mask, scale, softcap))
    return torch.cat(pieces, dim=2)


def _repeat_heads(side: Tensor, group_size: int) -> Tensor:
    """`[num_kv_heads, n, head_dim]` as `[num_kv_heads, group_size, n, head_dim]`, without a copy."""
    return side[:, None].expand(-1, group_size, -1, -1)
