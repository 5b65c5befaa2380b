"""The rows of the KV pool that a step reads and writes, for the torch path.

The memory of the pool is a table of rows of `head_dim` numbers. The rows of one layer's K lie at the same
distances from each other as those of any other layer's K or V, so one set of indices, computed once per
step, serves all layers: `LayerRows` moves the origin instead. A pool may be some KV heads of a larger one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from baton_kernels.interface.cache_dtype import FLOAT8, as_movable
from baton_kernels.interface.kernels import AttentionBatch

MIN_WIDTH: Final = 64


class LayerRows:
    """K and V of one layer as two tables of rows; a view of the pool."""

    def __init__(self, kv_pool: Tensor, layer: int) -> None:
        _, _, _, self.num_kv_heads, block_size, self.head_dim = kv_pool.shape
        self._dtype = kv_pool.dtype
        pool = as_movable(kv_pool)[:, layer]
        num_rows = (len(pool) - 1) * pool.stride(0) // self.head_dim + self.num_kv_heads * block_size
        table, distances = (num_rows, self.head_dim), (self.head_dim, 1)
        self._k, self._v = (
            side.as_strided(table, distances, side.storage_offset()) for side in pool.unbind(1)
        )

    def write(self, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """Put K and V, both `[num_tokens, num_kv_heads, head_dim]`, at `StepRows.write`. Mutates the pool.

        They are in the pool's dtype.
        """
        self._k.index_copy_(0, rows, as_movable(k).reshape(-1, self.head_dim))
        self._v.index_copy_(0, rows, as_movable(v).reshape(-1, self.head_dim))

    def read(self, rows: Tensor, num_seqs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Copies of K and V, both `[num_seqs, num_kv_heads, width, head_dim]`; codes become `dtype`."""
        k, v = (self._read(side, rows, dtype) for side in (self._k, self._v))
        shape = (num_seqs, self.num_kv_heads, -1, self.head_dim)
        return k.view(shape), v.view(shape)

    def _read(self, side: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        read = side.index_select(0, rows)
        return read.view(self._dtype).to(dtype) if self._dtype in FLOAT8 else read


def padded_width(num_keys: int) -> int:
    """The width that a decode over `num_keys` tokens is padded to: at most half of it more.

    It depends on the sequence alone, so other sequences in the batch do not change its arithmetic.
    """
    step = max(MIN_WIDTH, 1 << (num_keys - 1).bit_length() >> 2)
    return -(-num_keys // step) * step


@dataclass(frozen=True, slots=True, eq=False)
class DecodeGroup:
    """One-token slices whose keys are padded to the same width."""

    tokens: Tensor
    """`[num_decodes] int64`, the slices' places in the batch."""
    rows: Tensor
    """`[num_decodes * num_kv_heads * width] int64`; padding repeats a row of the same sequence."""
    mask: Tensor
    """`[num_decodes, 1, 1, width] bool`, False for padding."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """One slice of several tokens, `start` to `stop` in the batch."""

    start: int
    stop: int
    rows: Tensor | None
    """`[num_kv_heads * num_keys] int64`; None when the slice sees nothing but itself."""
    mask: Tensor | None
    """`[query_len, num_keys] bool`; None when `rows` is None: plain causal."""


class StepRows:
    """The rows of one batch in pools of one shape; computed when asked for."""

    def __init__(self, batch: AttentionBatch, kv_pool: Tensor) -> None:
        _, _, _, num_kv_heads, self._block_size, head_dim = kv_pool.shape
        self._rows_per_block = kv_pool.stride(0) // head_dim
        self._device = batch.slot_mapping.device
        self._head_rows = torch.arange(num_kv_heads, device=self._device) * self._block_size
        self._batch = batch
        self._window = batch.window

    @cached_property
    def write(self) -> Tensor:
        """`[num_tokens * num_kv_heads] int64`, where the step's K and V go."""
        slots = self._batch.slot_mapping
        rows = slots // self._block_size * self._rows_per_block + slots % self._block_size
        return (rows[:, None] + self._head_rows).flatten()

    @cached_property
    def decode_groups(self) -> tuple[DecodeGroup, ...]:
        members: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        token = 0
        for seq, (query_len, context_len) in enumerate(
            zip(self._batch.query_lens, self._batch.context_lens, strict=True)
        ):
            if query_len == 1:
                first = self._first_key(context_len - 1)
                members[padded_width(context_len - first)].append((token, seq, first))
            token += query_len
        return tuple(self._decode_group(width, group) for width, group in sorted(members.items()))

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        chunks = []
        start = 0
        for seq, query_len in enumerate(self._batch.query_lens):
            if query_len > 1:
                chunks.append(self._chunk(seq, start, start + query_len))
            start += query_len
        return tuple(chunks)

    def _first_key(self, position: int) -> int:
        """The first position that a query at `position` attends to."""
        return 0 if self._window is None else max(0, position - self._window + 1)

    def _decode_group(self, width: int, group: list[tuple[int, int, int]]) -> DecodeGroup:
        tokens, seqs, firsts = torch.tensor(group, device=self._device).unbind(1)
        positions = firsts[:, None] + torch.arange(width, device=self._device)
        is_key = positions < self._batch.seq_lens[seqs, None]
        positions = torch.where(is_key, positions, firsts[:, None])
        rows = self._rows_of(self._batch.block_tables[seqs], positions)
        return DecodeGroup(tokens, rows, is_key[:, None, None, :])

    def _chunk(self, seq: int, start: int, stop: int) -> Chunk:
        context_len = self._batch.context_lens[seq]
        first_query = context_len - (stop - start)
        first_key = self._first_key(first_query)
        if first_query == 0 and self._first_key(context_len - 1) == 0:
            return Chunk(start, stop, None, None)
        keys = torch.arange(first_key, context_len, device=self._device)
        queries = torch.arange(first_query, context_len, device=self._device)[:, None]
        mask = keys <= queries
        if self._window is not None:
            mask &= keys > queries - self._window
        rows = self._rows_of(self._batch.block_tables[seq, None], keys[None])
        return Chunk(start, stop, rows, mask)

    def _rows_of(self, tables: Tensor, positions: Tensor) -> Tensor:
        """Rows of `positions [n, width]` through `tables [n, max_blocks]`: `[n * num_kv_heads * width]`."""
        blocks = tables.long().gather(1, positions // self._block_size)
        rows = blocks * self._rows_per_block + positions % self._block_size
        return (rows[:, None, :] + self._head_rows[:, None]).flatten()
