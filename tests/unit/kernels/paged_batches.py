"""Batches over a paged cache for kernel tests: what a step holds, in a pool with unused blocks around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_kernels.interface.kernels import AttentionBatch

NUM_LAYERS = 2
LAYER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    batch: AttentionBatch
    kv_pool: Tensor
    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1] ** -0.5)


def make_paged_batch(
    slices: Sequence[tuple[int, int]],
    *,
    window: int | None = None,
    num_kv_heads: int = 2,
    group: int = 2,
    head_dim: int = 32,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> PagedBatch:
    """`slices` are (query length, context length) pairs. K and V of all contexts are in the pool's `LAYER`.

    Blocks are dealt in random order; everything that no query sees is NaN, so that a read of it shows.
    The pool is of `kv_dtype`, by default that of the queries.
    """
    kv_dtype = kv_dtype or dtype
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-context_len // block_size) for _, context_len in slices]
    order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    tables = [[order.pop() for _ in range(count)] for count in needed]
    batch = AttentionBatch.build(
        query_lens=[query_len for query_len, _ in slices],
        context_lens=[context_len for _, context_len in slices],
        block_tables=tables,
        block_size=block_size,
        window=window,
        device=device,
    )

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    shape = (sum(needed) + 2, NUM_LAYERS, 2, num_kv_heads, block_size, head_dim)
    pool = torch.full(shape, torch.nan).to(kv_dtype)
    for table, (query_len, context_len) in zip(tables, slices, strict=True):
        first_seen = 0 if window is None else max(0, context_len - query_len - window + 1)
        for position in range(first_seen, context_len):
            block, offset = table[position // block_size], position % block_size
            pool[block, LAYER, :, :, offset] = normal(2, num_kv_heads, head_dim).to(kv_dtype)
    k, v = _values_at(pool, batch.slot_mapping.cpu())
    q = normal(len(k), num_kv_heads * group, head_dim).to(dtype)
    return PagedBatch(batch=batch, kv_pool=pool.to(device), q=q.to(device), k=k.to(device), v=v.to(device))


def _values_at(pool: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """K and V, both `[num_tokens, num_kv_heads, head_dim]`, that the pool holds in `slots` of `LAYER`."""
    block_size = pool.shape[4]
    places = [divmod(slot, block_size) for slot in slots.tolist()]
    both = torch.stack([pool[block, LAYER, :, :, offset] for block, offset in places])
    return both[:, 0].contiguous(), both[:, 1].contiguous()
