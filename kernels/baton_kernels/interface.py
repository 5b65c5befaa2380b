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

from baton_kernels.rotation import rotate


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class AttentionBatch:
    """Where the tokens of one step stand in one KV group: slices of different lengths, one per sequence.

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
    """`[num_seqs, max_blocks] int32`; entries past a sequence's last block, or wholly before its
    window, are never used."""
    query_lens: tuple[int, ...]
    """Number of query tokens of each slice."""
    context_lens: tuple[int, ...]
    """`seq_lens` on the host."""
    window: int | None = None
    """In tokens: position i attends to j with `i - window < j <= i`; None attends to all before."""

    @classmethod
    def build(
        cls,
        *,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        block_size: int,
        window: int | None = None,
        device: torch.device | str = "cpu",
    ) -> AttentionBatch:
        """Derive the tensors from what the scheduler knows: lengths and block ids per slice.

        A negative block id stands for a block before the window, which nobody reads.

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
        ).clamp_(min=0)
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
            window=window,
        )


class AttentionKernels(ABC):
    """What the engine asks of a device for the cache: write it, attend over it, copy blocks of it.

    Within a step the order is `copy_blocks`, then for each layer `write` or `rotate_and_write`, and `attend`.
    `layer` is the layer's index in the blocks of its KV group, and `batch` is that group's.
    """

    @abstractmethod
    def write(self, k: Tensor, v: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch) -> None:
        """Write this step's K and V, both `[num_tokens, num_kv_heads, head_dim]`, to their slots.

        Mutates `kv_pool`, at `batch.slot_mapping` of `layer` alone.
        """

    def rotate_and_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys by their positions and write K and V as `write` does; return new q and k.

        `cos` and `sin` are `[num_tokens, 1, rotary_dim]` in the dtype of q: see `rotation.rotate`.
        """
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        self.write(k, v, kv_pool, layer, batch)
        return q, k

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
        softcap: float | None = None,
    ) -> Tensor:
        """Causal attention of every token over its own sequence, after the same layer was written.

        `q` is `[num_tokens, num_q_heads, head_dim]`, `k` and `v` are what was written; query head h reads KV
        head `h // (num_q_heads // num_kv_heads)`. With a soft cap, scores s become
        `softcap * tanh(s / softcap)` before the mask. Slots outside a sequence's context are never read.
        Returns a new tensor shaped like `q`.
        """

    @abstractmethod
    def copy_blocks(self, kv_pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each; all sources are read before any is written.

        Mutates `kv_pool` at the destinations, which must differ from each other.
        """


class LayerKernels:
    """What the engine asks of a device between two matrix products; this class computes it with torch."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Scale the last axis to unit root mean square, in float32, then by `weight`; same dtype as `x`.

        A weight in the dtype of `x` multiplies the rounded result; a float32 weight multiplies before the
        one rounding.
        """
        wide = x.to(torch.float32)
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (scaled.to(weight.dtype) * weight).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return `rms_norm(x + residual)` and `x + residual`; may overwrite both arguments."""
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return `silu(gate) * up` `[num_rows, n]` of both side by side `[num_rows, 2 * n]`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What a process computes with, chosen once at start."""

    attention: AttentionKernels
    layers: LayerKernels
