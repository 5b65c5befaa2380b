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
    sinks: Tensor | None = None,
) -> Tensor:
    """Return attention `[num_tokens, num_q_heads, head_dim]` of the chunk `q`, shaped like it.

    `k` and `v` `[num_tokens, num_kv_heads, head_dim]` are the chunk's own, `cached` those of all tokens
    before it that its first token sees, both `[num_kv_heads, num_cached, head_dim]`. `sinks` `[num_q_heads]`
    are logits that join the sums of their heads.
    """
    num_tokens, num_kv_heads, head_dim = k.shape
    # Batched over KV heads: [num_kv_heads, heads per KV head, num_tokens, head_dim].
    grouped_q = q.reshape(num_tokens, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    own = k.transpose(0, 1), v.transpose(0, 1)
    num_cached = cached[0].shape[1]
    row_sinks = None if sinks is None else sinks.view(num_kv_heads, -1, 1)
    if softcap is not None or (window is not None and num_cached + num_tokens > window):
        out = _attend_together(grouped_q, own, cached, window, scale, softcap, row_sinks)
    else:
        out = _attend_apart(grouped_q, own, cached, scale, row_sinks)
    return out.permute(2, 0, 1, 3).flatten(1, 2)


def _attend_apart(
    q: Tensor,
    own: tuple[Tensor, Tensor],
    cached: tuple[Tensor, Tensor],
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    """Attention over all of `cached` and, causally, `own`.

    `q` and the result are `[num_kv_heads, group_size, num_tokens, head_dim]`, `sinks`
    `[num_kv_heads, group_size, 1]`.
    """
    out, log_sum = _flash(q, own, scale, is_causal=True)
    if cached[0].shape[1]:
        cached_out, cached_log_sum = _flash(q, cached, scale, is_causal=False)
        share = torch.sigmoid(cached_log_sum - log_sum)[..., None]
        out = torch.lerp(out.float(), cached_out.float(), share)
        log_sum = torch.logaddexp(log_sum, cached_log_sum) if sinks is not None else log_sum
    if sinks is not None:
        out = _join_sinks(out, log_sum, sinks)
    return out.to(q.dtype)


def _join_sinks(out: Tensor, log_sum: Tensor, sinks: Tensor) -> Tensor:
    """Return `out` in float32 with `sinks` in the sums of weights whose logarithms are `log_sum`."""
    return out.float() * torch.sigmoid(log_sum - sinks)[..., None]


def _flash(
    q: Tensor, kv: tuple[Tensor, Tensor], scale: float, *, is_causal: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention and, for each query, the logarithm of the sum of its weights.

    `mask` `[num_tokens, num_keys] bool` has the keys that a query sees.
    """
    k, v = (_repeat_heads(side, q.shape[1]) for side in kv)
    added = None if mask is None else torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, is_causal=is_causal, attn_mask=added, scale=scale
    )
    return out, log_sum


def _attend_together(
    q: Tensor,
    own: tuple[Tensor, Tensor],
    cached: tuple[Tensor, Tensor],
    window: int | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention under masks, for `_MASKED_QUERIES` at a time: all scores at once could exceed the memory."""
    k, v = (torch.cat(sides, dim=1) for sides in zip(cached, own, strict=True))
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
        pieces.append(_attend_masked(q[:, :, rows], (k[:, seen], v[:, seen]), mask, scale, softcap, sinks))
    return torch.cat(pieces, dim=2)


def _attend_masked(
    q: Tensor,
    kv: tuple[Tensor, Tensor],
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of some queries over the keys that `mask` `[num_tokens, num_keys] bool` has."""
    if sinks is not None and softcap is None:
        return _join_sinks(*_flash(q, kv, scale, is_causal=False, mask=mask), sinks).to(q.dtype)
    k, v = (_repeat_heads(side, q.shape[1]) for side in kv)
    return attention_masked(q, k, v, mask, scale, softcap, sinks)


def _repeat_heads(side: Tensor, group_size: int) -> Tensor:
    """`[num_kv_heads, n, head_dim]` as `[num_kv_heads, group_size, n, head_dim]`, without a copy."""
    return side[:, None].expand(-1, group_size, -1, -1)
