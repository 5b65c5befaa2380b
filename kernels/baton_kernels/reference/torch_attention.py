"""Attention over the paged cache in plain torch, on any device.

Rows are gathered from the pool into contiguous K and V, then given to `scaled_dot_product_attention`:
one-token slices together, padded; prompt chunks one by one, over prefix and self.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from baton_kernels.interface.cache_dtype import FLOAT8, UNSCALED, LayerKVScales, encode
from baton_kernels.interface.kernels import AttentionBatch, AttentionKernels, check_sinks
from baton_kernels.reference.pool_rows import Chunk, DecodeGroup, LayerRows, StepRows


class TorchAttention(AttentionKernels):
    """Keeps the row indices of a batch as long as the batch lives: its layers share them."""

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[AttentionBatch, dict[torch.Size, StepRows]]
        self._steps = WeakKeyDictionary()

    def write(
        self,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scales: LayerKVScales = UNSCALED,
    ) -> None:
        codes = (encode(side, kv_pool.dtype, scale) for side, scale in zip((k, v), scales, strict=True))
        LayerRows(kv_pool, layer).write(self._step_rows(kv_pool, batch).write, *codes)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scale: float,
        softcap: float | None = None,
        scales: LayerKVScales = UNSCALED,
        sinks: Tensor | None = None,
    ) -> Tensor:
        check_sinks(sinks, q.shape[1])
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if kv_pool.dtype in FLOAT8:  # a chunk sees itself as the cache has it
            k, v = (
                encode(side, kv_pool.dtype, by).to(q.dtype) for side, by in zip((k, v), scales, strict=True)
            )
        cache, scale = LayerRows(kv_pool, layer), scale * scales.k
        if sinks is not None:
            sinks = sinks.view(cache.num_kv_heads, -1)
        for chunk in self._step_rows(kv_pool, batch).chunks:
            _attend_chunk(out, q, k, v, cache, chunk, scale, softcap, sinks)
        for group in self._step_rows(kv_pool, batch).decode_groups:
            _attend_decodes(out, q, cache, group, scale, softcap, sinks)
        return out if scales.v == 1 else out.mul_(scales.v)

    def _step_rows(self, kv_pool: Tensor, batch: AttentionBatch) -> StepRows:
        by_shape = self._steps.setdefault(batch, {})
        if kv_pool.shape not in by_shape:
            by_shape[kv_pool.shape] = StepRows(batch, kv_pool)
        return by_shape[kv_pool.shape]


def _attend_decodes(
    out: Tensor,
    q: Tensor,
    cache: LayerRows,
    group: DecodeGroup,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> None:
    num_decodes = len(group.tokens)
    # The query heads of one KV head see the same keys: they become its query rows.
    grouped_q = q.index_select(0, group.tokens).view(num_decodes, cache.num_kv_heads, -1, cache.head_dim)
    k, v = cache.read(group.rows, num_decodes, q.dtype)
    attended = attention_masked(grouped_q, k, v, group.mask, scale, softcap, sinks)
    out.index_copy_(0, group.tokens, attended.reshape(num_decodes, -1, cache.head_dim))


def _attend_chunk(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: LayerRows,
    chunk: Chunk,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> None:
    tokens = slice(chunk.start, chunk.stop)
    if chunk.rows is None:
        k, v = (side[tokens].transpose(0, 1)[None] for side in (k, v))
    else:
        k, v = cache.read(chunk.rows, 1, q.dtype)
    # Batched over KV heads: [num_kv_heads, heads per KV head, query_len, head_dim]; the heads of K and V
    # are views of one, repeated without a copy.
    grouped_q = q[tokens].reshape(chunk.stop - chunk.start, cache.num_kv_heads, -1, cache.head_dim)
    grouped_q = grouped_q.permute(1, 2, 0, 3)
    k, v = (side[0, :, None].expand(-1, grouped_q.shape[1], -1, -1) for side in (k, v))
    row_sinks = None if sinks is None else sinks[..., None]
    attended = attention_masked(grouped_q, k, v, chunk.mask, scale, softcap, row_sinks)
    out[tokens] = attended.permute(2, 0, 1, 3).flatten(1, 2)


def attention_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of `q [..., query_len, head_dim]` over `k`, `v`; without a mask it is plain causal.

    `sinks` broadcast to `[..., query_len]` and join the sums of their rows.
    """
    if softcap is None and sinks is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
    if mask is None:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(-1, -2)
    scores = scores * scale if softcap is None else torch.tanh(scores * (scale / softcap)) * softcap
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is None:
        return scores.softmax(dim=-1, dtype=torch.float32).to(v.dtype) @ v
    scores = torch.cat((scores.float(), sinks[..., None].expand(*scores.shape[:-1], 1)), dim=-1)
    return scores.softmax(dim=-1)[..., :-1].to(v.dtype) @ v
