"""Attention over the paged cache in plain torch, on any device.

Rows are gathered from the pool into contiguous K and V, then given to `scaled_dot_product_attention`:
one-token slices together, padded; prompt chunks one by one, over prefix and self.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from baton_kernels.interface import AttentionBatch, AttentionKernels
from baton_kernels.pool_rows import Chunk, DecodeGroup, LayerRows, StepRows


class TorchAttention(AttentionKernels):
    """Keeps the row indices of a batch as long as the batch lives: its layers share them."""

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[AttentionBatch, dict[tuple[torch.Size, int | None], StepRows]]
        self._steps = WeakKeyDictionary()

    def write_kv(self, k: Tensor, v: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch) -> None:
        LayerRows(kv_pool, layer).write(self._step_rows(kv_pool, batch, None).write, k, v)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
    ) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.attend_chunks(out, q, k, v, kv_pool, layer, batch, scale, window)
        for group in self._step_rows(kv_pool, batch, window).decode_groups:
            _attend_decodes(out, q, LayerRows(kv_pool, layer), group, scale)
        return out

    def attend_chunks(
        self,
        out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
    ) -> None:
        """`attend` for the slices of several tokens alone. Mutates their rows of `out`."""
        for chunk in self._step_rows(kv_pool, batch, window).chunks:
            _attend_chunk(out, q, k, v, LayerRows(kv_pool, layer), chunk, scale)

    def copy_blocks(self, kv_pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs:
            return
        sources, destinations = torch.tensor(pairs, device=kv_pool.device).unbind(1)
        kv_pool.index_copy_(0, destinations, kv_pool.index_select(0, sources))

    def _step_rows(self, kv_pool: Tensor, batch: AttentionBatch, window: int | None) -> StepRows:
        by_kind = self._steps.setdefault(batch, {})
        key = (kv_pool.shape, window)
        if key not in by_kind:
            by_kind[key] = StepRows(batch, kv_pool.shape, window)
        return by_kind[key]


def _attend_decodes(out: Tensor, q: Tensor, cache: LayerRows, group: DecodeGroup, scale: float) -> None:
    num_decodes = len(group.tokens)
    # The query heads of one KV head see the same keys: they become its query rows.
    grouped_q = q.index_select(0, group.tokens).view(num_decodes, cache.num_kv_heads, -1, cache.head_dim)
    k, v = cache.read(group.rows, num_decodes)
    attended = scaled_dot_product_attention(grouped_q, k, v, attn_mask=group.mask, scale=scale)
    out.index_copy_(0, group.tokens, attended.reshape(num_decodes, -1, cache.head_dim))


def _attend_chunk(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, cache: LayerRows, chunk: Chunk, scale: float
) -> None:
    tokens = slice(chunk.start, chunk.stop)
    if chunk.rows is None:
        k, v = (side[tokens].transpose(0, 1)[None] for side in (k, v))
    else:
        k, v = cache.read(chunk.rows, 1)
    # Batched over KV heads: [num_kv_heads, heads per KV head, query_len, head_dim]; the heads of K and V
    # are views of one, repeated without a copy.
    grouped_q = q[tokens].reshape(chunk.stop - chunk.start, cache.num_kv_heads, -1, cache.head_dim)
    grouped_q = grouped_q.permute(1, 2, 0, 3)
    k, v = (side[0, :, None].expand(-1, grouped_q.shape[1], -1, -1) for side in (k, v))
    attended = scaled_dot_product_attention(
        grouped_q, k, v, attn_mask=chunk.mask, is_causal=chunk.mask is None, scale=scale
    )
    out[tokens] = attended.permute(2, 0, 1, 3).flatten(1, 2)
