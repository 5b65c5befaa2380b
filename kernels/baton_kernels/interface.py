"""The interface through which the engine uses attention kernels, chosen once at start.

The KV pool of a worker is one contiguous tensor `kv_pool`
`[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]` (0 = K, 1 = V). A slot is one token's
place in a layer: `slot = block_id * block_size + offset`.
Called from the engine thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class AttentionBatch:
    """Where the tokens of one step stand: slices of different lengths, one per sequence, back to back.

    A slice of one query token is decode, a longer one a prompt chunk; both occur in one batch. The
    tensors are on the pool's device; the tuples say the same on the host, so that no path waits for the
    device. Valid for all layers of the step; nobody changes it.
    """

    positions: Tensor
    """`[num_tokens] int64`, position of each token in its sequence."""
    slot_mapping: Tensor
    """`[num_tokens] int64`, the slot that each token's K and V are written to."""
    query_start: Tensor
    """`[num_seqs + 1] int32`, cumulative query lengths."""
    seq_lens: Tensor
    """`[num_seqs] int32`, context length including this step's tokens."""
    block_tables: Tensor
    """`[num_seqs, max_blocks] int32`; entries past a sequence's last block are never used."""
    query_lens: tuple[int, ...]
    """Number of query tokens of each slice."""
    context_lens: tuple[int, ...]
    """`seq_lens` on the host."""

    @classmethod
    def build(
        cls,
        *,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> AttentionBatch:
        """Derive the tensors from what the scheduler knows: lengths and block ids per slice.

        Raises: ValueError when a slice is empty, longer than its context, or has too few blocks.
        """
        for query_len, context_len, blocks in zip(query_lens, context_lens, block_tables, strict=True):
            if not 0 < query_len <= context_len <= len(blocks) * block_size:
                raise ValueError(
                    f"slice of {query_len} tokens, context {context_len}, {len(blocks)} blocks of "
                    f"{block_size}; allowed: 0 < slice <= context <= blocks * block_size"
                )
        width = max(map(len, block_tables), default=0)
        tables = torch.tensor(
            [[*blocks] + [0] * (width - len(blocks)) for blocks in block_tables], dtype=torch.int32
        )
        lengths, contexts = (torch.tensor(values, dtype=torch.int32) for values in (query_lens, context_lens))
        query_start = torch.zeros(len(query_lens) + 1, dtype=torch.int32)
        query_start[1:] = lengths.cumsum(0)
        seq_of_token = torch.arange(len(query_lens)).repeat_interleave(lengths)
        positions = torch.arange(len(seq_of_token)) + (contexts - query_start[1:])[seq_of_token]
        block_of_token = tables.view(len(query_lens), width)[seq_of_token, positions // block_size].long()
        return cls(
            positions=positions.to(device),
            slot_mapping=(block_of_token * block_size + positions % block_size).to(device),
            query_start=query_start.to(device),
            seq_lens=contexts.to(device),
            block_tables=tables.to(device),
            query_lens=tuple(query_lens),
            context_lens=tuple(context_lens),
        )


class AttentionKernels(ABC):
    """What the engine asks of a device: write the cache, attend over it, copy blocks of it.

    Within a step the order is `copy_blocks`, then for each layer `write_kv` and `attend`.
    """

    @abstractmethod
    def write_kv(self, k: Tensor, v: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch) -> None:
        """Write this step's K and V, both `[num_tokens, num_kv_heads, head_dim]`, to their slots.

        Mutates `kv_pool`, at `batch.slot_mapping` of `layer` alone.
        """

    @abstractmethod
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
        """Causal attention of every token over its own sequence, after `write_kv` of the same layer.

        `q` is `[num_tokens, num_q_heads, head_dim]`, `k` and `v` are what `write_kv` wrote; query head h
        reads KV head `h // (num_q_heads // num_kv_heads)`. With a `window` in tokens, position i attends
        to j with `i - window < j <= i`. Slots outside a sequence's context are never read.
        Returns a new tensor shaped like `q`.
        """

    @abstractmethod
    def copy_blocks(self, kv_pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each; all sources are read before any is written.

        Mutates `kv_pool` at the destinations, which must differ from each other.
        """
