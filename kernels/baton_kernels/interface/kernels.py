"""The interface through which the engine uses attention kernels, chosen once at start.

The KV pool of a worker is one contiguous tensor `kv_pool`
`[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]` (0 = K, 1 = V). A slot is one token's
place in a layer: `slot = block_id * block_size + offset`.
Called from the engine thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.interface.bidirectional import bidirectional_attention
from baton_kernels.interface.cache_dtype import UNSCALED, LayerKVScales, as_movable
from baton_kernels.interface.lora import LoraLayer, LoraTable
from baton_kernels.interface.quantized import QuantizedWeight
from baton_kernels.interface.sampling import SamplingKernels
from baton_kernels.interface.step_layout import StepLayout, table_array
from baton_kernels.interface.upload import upload


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `x` `[num_tokens, num_heads, head_dim]` rotated, as a new tensor.

    `cos` and `sin` are `[num_tokens, 1, rotary_dim]`; dimensions from `rotary_dim` on pass unchanged.
    """
    rotary_dim = cos.shape[-1]
    turned = x if rotary_dim == x.shape[-1] else x[..., :rotary_dim]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return turned if rotary_dim == x.shape[-1] else torch.cat((turned, x[..., rotary_dim:]), dim=-1)


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class AttentionBatch:
    """The tokens of one step in one KV group: slices of different lengths, one per sequence.

    A slice of one query token is decode, a longer one a prompt chunk; both occur in one batch. The
    tensors are on the pool's device; the tuples say the same on the host, so that no path waits for the
    device. Valid for all layers of the step; nobody changes it.
    """

    positions: Tensor
    """`[num_tokens] int64`, position of each token in its sequence."""
    slot_mapping: Tensor
    """`[num_tokens] int64`, the slot that each token's K and V are written to; -1 is padding of a captured
    step, which is written nowhere."""
    query_start: Tensor
    """`[num_seqs + 1] int32`, cumulative query lengths."""
    seq_lens: Tensor
    """`[num_seqs] int32`, context length including this step's tokens; 0 is padding of a captured step."""
    block_tables: Tensor
    """`[num_seqs, max_blocks] int32`; entries past a sequence's last block, or wholly before its
    window, are never used."""
    query_lens: tuple[int, ...]
    """Number of query tokens of each slice."""
    context_lens: tuple[int, ...]
    """`seq_lens` on the host; upper bounds of them where the step is captured, to be replayed with others."""
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
        """`build_groups` for a single KV group."""
        (batch,) = cls.build_groups(
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=[block_tables],
            windows=[window],
            block_size=block_size,
            device=device,
        )
        return batch

    @classmethod
    def build_groups(
        cls,
        *,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_tables: Sequence[Sequence[Sequence[int]]],
        windows: Sequence[int | None],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> list[AttentionBatch]:
        """Derive a batch for each KV group from what the scheduler knows: lengths, and block ids per slice.

        What is the same for all groups is one tensor; everything reaches the device in one copy. A negative
        block id stands for a block before the window, which nobody reads.

        Raises: ValueError when a slice is empty, longer than its context, or has too few blocks.
        """
        for tables in block_tables:
            _check_slices(query_lens, context_lens, tables, block_size)
        layout = StepLayout.of(query_lens, context_lens)
        padded = [table_array(tables) for tables in block_tables]
        slots = [layout.slots(tables, block_size) for tables in padded]
        on_device = upload((layout.positions, layout.query_start, layout.seq_lens, *slots, *padded), device)
        positions, query_start, seq_lens = on_device[:3]
        return [
            cls(
                positions=positions,
                slot_mapping=slot_mapping,
                query_start=query_start,
                seq_lens=seq_lens,
                block_tables=tables,
                query_lens=tuple(query_lens),
                context_lens=tuple(context_lens),
                window=window,
            )
            for slot_mapping, tables, window in zip(
                on_device[3 : 3 + len(slots)], on_device[3 + len(slots) :], windows, strict=True
            )
        ]


def _check_slices(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
) -> None:
    for query_len, context_len, blocks in zip(query_lens, context_lens, block_tables, strict=True):
        if not 0 < query_len <= context_len <= len(blocks) * block_size:
            raise ValueError(
                f"slice of {query_len} tokens, context {context_len}, {len(blocks)} blocks of "
                f"{block_size}; allowed: 0 < slice <= context <= blocks * block_size"
            )


class AttentionKernels(ABC):
    """Attention kernels of a device: write the cache, attend over it, copy blocks of it.

    Within a step the order is `copy_blocks`, then for each layer `write` or `rotate_and_write`, and `attend`.
    `layer` is the layer's index in the blocks of its KV group, and `batch` is that group's. A cache of 8 bits
    is written and read with the layer's `scales`, and every token is attended to as the cache holds it.
    """

    k_axes: str = "HTD"
    """Order in memory in which these kernels keep a layer's K: heads, tokens of the block, head dimension."""
    v_axes: str = "HTD"
    """The same of V; `HDT` is V transposed inside each head. Known before the pool is allocated."""

    @abstractmethod
    def write(
        self,
        k: Tensor,
        v: Tensor,
        kv_pool: Tensor,
        layer: int,
        batch: AttentionBatch,
        scales: LayerKVScales = UNSCALED,
    ) -> None:
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
        scales: LayerKVScales = UNSCALED,
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys by their positions and write K and V as `write` does; return new q and k.

        `cos` and `sin` are `[num_tokens, 1, rotary_dim]` in the dtype of q: see `rotate`.
        """
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        self.write(k, v, kv_pool, layer, batch, scales)
        return q, k

    @abstractmethod
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
        """Causal attention of every token over its own sequence, after the same layer was written.

        `q` is `[num_tokens, num_q_heads, head_dim]`, `k` and `v` are what was written; query head h reads KV
        head `h // (num_q_heads // num_kv_heads)`. With a soft cap, scores s become
        `softcap * tanh(s / softcap)` before the mask. Slots outside a sequence's context are never read.
        `sinks` `[num_q_heads] float32`, contiguous, are logits that join the denominator of each head's
        softmax, neither scaled nor capped: weights are `exp(s_j) / (sum(exp(s_j)) + exp(sink))`.
        Returns a new tensor shaped like `q`.

        Raises: ValueError when `sinks` have another shape, dtype or layout.
        """

    def bidirectional(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seq_lens: Sequence[int],
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """Attention of every token to all tokens of its own sequence, which no cache holds.

        `q` is `[num_tokens, num_q_heads, head_dim]`, `k` and `v` `[num_tokens, num_kv_heads, head_dim]`, with
        sequences of `seq_lens` tokens back to back; heads are shared as in `attention`. With a window,
        position i attends to j with `abs(i - j) <= window`. Returns a new tensor shaped like `q`, in which
        the numbers of a sequence do not depend on the others.
        """
        return bidirectional_attention(q, k, v, seq_lens, scale, window)

    def is_capturable(self, kv_pool: Tensor) -> bool:
        """Say whether one-token slices may be captured once and replayed at other lengths.

        They may where kernels take lengths, tables and padding from the batch's device tensors alone.
        """
        return False

    def copy_blocks(self, kv_pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each; all sources are read before any is written.

        Mutates `kv_pool` at the destinations, which must differ from each other.
        """
        if pairs:
            pool = as_movable(kv_pool)
            sources, destinations = torch.tensor(pairs, device=pool.device).unbind(1)
            pool.index_copy_(0, destinations, pool.index_select(0, sources))


def check_sinks(sinks: Tensor | None, num_q_heads: int) -> None:
    """Raises: ValueError when the sinks are not what `AttentionKernels.attention` takes."""
    if sinks is None:
        return
    if sinks.shape != (num_q_heads,) or sinks.dtype != torch.float32 or not sinks.is_contiguous():
        raise ValueError(
            f"sinks are {sinks.dtype} of shape {list(sinks.shape)} and stride {list(sinks.stride())}; "
            f"allowed: torch.float32 of shape [{num_q_heads}] and stride [1]"
        )


class Function(IntEnum):
    """Activation functions of one number."""

    SILU = 0
    GELU = 1
    GELU_TANH = 2
    TANH = 3


VECTORISED: Final = (Function.SILU, Function.GELU_TANH)
"""Functions that C++ computes for a whole vector at once; torch is faster with the others."""
NOT_GATED: Final = -1
"""In place of a `Function`: the outputs of a linear layer are not gated."""
_FUNCTIONS: Final[dict[Function, Callable[[Tensor], Tensor]]] = {
    Function.SILU: functional.silu,
    Function.GELU: functional.gelu,
    Function.GELU_TANH: partial(functional.gelu, approximate="tanh"),
    Function.TANH: torch.tanh,
}


class Product(Protocol):
    """`x @ weight.T + bias`: maps `[num_rows, in_features]` to a new `[num_rows, out_features]`."""

    @property
    def packed_bytes(self) -> int:
        """Size of its own copy of the weight; 0 where it keeps the weight itself."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...


@runtime_checkable
class GatedProduct(Product, Protocol):
    """A product that can apply a function to half of its outputs before these are written."""

    def gates(self, function: Function) -> bool:
        """Say whether it has `gated` of that function for its outputs, which are two halves."""
        ...

    def gated(self, function: Function, x: Tensor) -> Tensor:
        """Return `function(gate) * up` `[num_rows, n]` of outputs that are gate and up, rounded once."""
        ...


class LayerKernels:
    """Norms, activations and linear layers of a device; this class computes them with torch."""

    is_invariant: bool = False
    """True if they have a product for every linear layer, and no row's result depends on other rows."""

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

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """Bring the last axis to mean 0 and variance 1, then scale and shift it; same dtype as `x`."""
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def look_up(self, table: Tensor, rows: Tensor) -> Tensor:
        """Return the rows `[num_rows, size]` of a table `[table_size, size]` at `rows` `[num_rows] int64`."""
        return table[rows]

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Write a tensor to another of the same shape and dtype."""
        target.copy_(source)

    def rotary_angles(
        self, positions: Tensor, inv_freq: Tensor, magnitude: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, `[num_tokens, 1, rotary_dim]` each, of positions times frequencies.

        Args:
            positions: `[num_tokens] int64`.
            inv_freq: `[rotary_dim] float32`, whose second half is like its first.
            magnitude: factor of both results.
        """
        angles = positions[:, None, None] * inv_freq
        cos, sin = angles.cos(), angles.sin()
        if magnitude != 1.0:
            cos, sin = cos * magnitude, sin * magnitude
        return cos.to(dtype), sin.to(dtype)

    def apply(self, function: Function, x: Tensor) -> Tensor:
        """Return the function of each number of `x`, in a new tensor of the same shape and dtype."""
        return _FUNCTIONS[function](x)

    def apply_mul(self, function: Function, gate_up: Tensor) -> Tensor:
        """Return `function(gate) * up` `[num_rows, n]` of both side by side `[num_rows, 2 * n]`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.apply(function, gate) * up

    def product(self, weight: Tensor, bias: Tensor | None) -> Product | None:
        """Return a linear layer that these kernels compute their way; None leaves it to the engine."""
        return None

    def quantized_product(
        self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype
    ) -> Product | None:
        """Return a linear layer of a quantized weight for rows of `dtype`; None leaves it to the engine."""
        return None

    def lora_table(self, layer: LoraLayer) -> LoraTable:
        """Return the place of a layer's adapters, empty."""
        return LoraTable(layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The kernels of a process, chosen once at start."""

    attention: AttentionKernels
    layers: LayerKernels
    sampling: SamplingKernels
    numerics: str = ""
    """A fingerprint of batch-invariant numerics; empty where results depend on the batch."""
