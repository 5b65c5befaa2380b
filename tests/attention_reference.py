"""Reference results of attention kernels, in float64 and one token at a time: the oracle of their tests."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.interface.cache_dtype import UNSCALED, LayerKVScales, encode
from baton_kernels.interface.kernels import AttentionBatch


def write_kv_reference(
    k: Tensor,
    v: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    scales: LayerKVScales = UNSCALED,
) -> None:
    """`AttentionKernels.write`. Mutates `kv_pool`."""
    block_size = kv_pool.shape[4]
    k, v = (encode(side, kv_pool.dtype, scale) for side, scale in zip((k, v), scales, strict=True))
    for token, slot in enumerate(batch.slot_mapping.tolist()):
        block, offset = divmod(slot, block_size)
        kv_pool[block, layer, 0, :, offset] = k[token]
        kv_pool[block, layer, 1, :, offset] = v[token]


def attention_reference(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    batch: AttentionBatch,
    scale: float,
    softcap: float | None = None,
    scales: LayerKVScales = UNSCALED,
    sinks: Tensor | None = None,
) -> Tensor:
    """`AttentionKernels.attention`, reading all K and V from `kv_pool`. Returns float64, shaped like `q`."""
    out = torch.zeros_like(q, dtype=torch.float64)
    token = 0
    for seq, (query_len, context_len) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
        codes = _cached_kv(kv_pool, layer, batch.block_tables[seq].tolist(), context_len)
        k, v = (side * by for side, by in zip(codes, scales, strict=True))
        for position in range(context_len - query_len, context_len):
            first = 0 if batch.window is None else max(0, position - batch.window + 1)
            seen = slice(first, position + 1)
            out[token] = _attend_one(q[token].double(), k[seen], v[seen], scale, softcap, sinks)
            token += 1
    return out


def _cached_kv(kv_pool: Tensor, layer: int, block_ids: list[int], context_len: int) -> tuple[Tensor, Tensor]:
    """K and V of a sequence's first tokens, both `[context_len, num_kv_heads, head_dim]` float64."""
    block_size = kv_pool.shape[4]
    places = [(block_ids[position // block_size], position % block_size) for position in range(context_len)]
    k, v = (
        torch.stack([kv_pool[block, layer, side, :, offset].double() for block, offset in places])
        for side in (0, 1)
    )
    return k, v


def _attend_one(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """One query `[num_q_heads, head_dim]` over the keys `[num_keys, num_kv_heads, head_dim]` it may see."""
    group_size = q.shape[0] // k.shape[1]
    heads = []
    for head in range(q.shape[0]):
        kv_head = head // group_size
        scores = k[:, kv_head] @ q[head] * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat((scores, sinks[head : head + 1].double()))
        heads.append(torch.softmax(scores, dim=0)[: len(k)] @ v[:, kv_head])
    return torch.stack(heads)
