"""Arguments of the C++ kernels: the one definition of the structs and numbers that both languages share.

Pointers are addresses of CPU tensors, which the caller keeps alive, in the shapes that are stated here.
`build` compiles the kernels against `c_header()`; `CpuLibrary` compares the layouts.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Final

from baton_kernels.cpu.c_struct import (
    Flag,
    Float,
    Int32,
    Int64,
    Source,
    SourceBytes,
    SourceDouble,
    SourceFloat,
    SourceInt32,
    SourceInt64,
    Target,
    TargetBytes,
    TargetInt64,
    c_struct,
    header,
)
from baton_kernels.cpu.collective_structs import (
    AwaitTurnArgs,
    ExchangeArgs,
    Meeting,
    ReceiveArgs,
    SendArgs,
    SetTurnArgs,
)
from baton_kernels.cpu.linear_structs import (
    LORA_INPUTS,
    LORA_RANKS,
    CodeLayout,
    Int8LinearArgs,
    LoraArgs,
    PackArgs,
    PackedLinearArgs,
    QuantizeArgs,
    QuantizedLinearArgs,
    RoundInputsArgs,
)
from baton_kernels.interface.cache_dtype import CacheDtype
from baton_kernels.interface.kernels import NOT_GATED, Function
from baton_kernels.interface.sampling import MASS_BITS, Refusal

PANEL_WIDTH: Final = 32
"""Outputs of an 8-bit linear layer that lie side by side."""
LARGEST_CODE: Final = 127
"""Largest magnitude of an 8-bit code."""


class Status(IntEnum):
    """Result of a kernel."""

    OK = 0
    UNSUPPORTED_LAYOUT = 1
    OUT_OF_MEMORY = 2
    ROW_OUT_OF_RANGE = 3
    RANK_LOST = 4


@c_struct
class KvLayer(ctypes.Structure):
    """One layer's part of the KV pool."""

    k: Target
    """K of block 0, `[num_kv_heads, block_size, head_dim]`."""
    v: Target
    """V of block 0, like K or `[num_kv_heads, head_dim, block_size]`."""
    block_stride: Int64
    """Elements between blocks."""
    num_kv_heads: Int64
    head_dim: Int64
    block_size: Int64
    dtype: Int32
    """A `CacheDtype`."""
    is_v_transposed: Flag
    k_scale: Float
    v_scale: Float


@c_struct
class DecodeAttentionArgs(ctypes.Structure):
    """Attention of one-token slices."""

    layer: KvLayer
    q: Source
    """`[num_tokens, num_kv_heads * group_size, head_dim]`."""
    out: Target
    """Result, like `q` and contiguous."""
    tables: SourceInt32
    """`[num_seqs, blocks]`, rows `table_stride` apart."""
    lengths: SourceInt32
    """`[num_seqs]`, context lengths."""
    tokens: SourceInt32
    """`[num_decodes]`, rows of `q`."""
    seqs: SourceInt32
    """`[num_decodes]`, rows of `tables` and `lengths`."""
    q_stride: Int64
    """Elements between the rows of `q`."""
    num_decodes: Int64
    table_stride: Int64
    group_size: Int64
    window: Int64
    """Tokens; 0 is all."""
    num_threads: Int64
    is_q_bfloat16: Flag
    scale: Float
    soft_cap: Float
    """0 is none."""
    sinks: SourceFloat
    """`[num_kv_heads * group_size]`, logits in the denominators of the query heads; null is none."""


@c_struct
class VarlenAttentionArgs(ctypes.Structure):
    """Attention of the slices of a step that have `least_tokens` or more, or of whole prompts' tokens.

    Only a build with tiles reads V transposed, for queries of bfloat16.
    """

    layer: KvLayer
    q: Source
    """`[num_tokens, num_kv_heads * group_size, head_dim]`."""
    out: Target
    """Result, like `q` and contiguous."""
    tables: SourceInt32
    """`[num_seqs, blocks]`, rows `table_stride` apart."""
    lengths: SourceInt32
    """`[num_seqs]`, context lengths."""
    query_start: SourceInt32
    """`[num_seqs + 1]`, rows of `q`."""
    q_stride: Int64
    """Elements between the rows of `q`."""
    num_seqs: Int64
    table_stride: Int64
    group_size: Int64
    window: Int64
    """Tokens; 0 is all."""
    after: Int64
    """Tokens that a token sees behind its own, if there are as many."""
    least_tokens: Int64
    num_threads: Int64
    is_q_bfloat16: Flag
    scale: Float
    soft_cap: Float
    """0 is none."""
    sinks: SourceFloat
    """`[num_kv_heads * group_size]`, logits in the denominators of the query heads; null is none."""


@c_struct
class BidirectionalAttentionArgs(ctypes.Structure):
    """Attention of the tokens of each prompt to each other, in bfloat16, by a build with tiles."""

    q: Source
    """`[num_tokens, num_kv_heads * group_size, head_dim]`."""
    k: Source
    """`[num_tokens, num_kv_heads, head_dim]`."""
    v: Source
    """Like `k`."""
    out: Target
    """Result, like `q` and contiguous."""
    query_start: SourceInt32
    """`[num_seqs + 1]`, rows of `q`, `k` and `v`."""
    q_stride: Int64
    """Elements between the rows of `q`."""
    k_stride: Int64
    v_stride: Int64
    num_seqs: Int64
    num_kv_heads: Int64
    group_size: Int64
    head_dim: Int64
    window: Int64
    """Tokens that a token sees on either side; -1 is all."""
    num_threads: Int64
    scale: Float


@c_struct
class KvWriteArgs(ctypes.Structure):
    """A write of new tokens to their slots, in the dtype of the cache or, to one of 8 bits, another."""

    layer: KvLayer
    k: Source
    """`[num_tokens, num_kv_heads, head_dim]`."""
    v: Source
    """Like `k`."""
    slots: SourceInt64
    """`[num_tokens]`; a token of a negative slot is not written."""
    k_stride: Int64
    """Elements between the tokens of `k`."""
    v_stride: Int64
    num_tokens: Int64
    num_threads: Int64
    is_bfloat16: Flag


@c_struct
class RotateArgs(ctypes.Structure):
    """Rotation of queries and keys, and a write of the new tokens to their slots."""

    write: KvWriteArgs
    """Its `k` is `k_out`."""
    q: Source
    """`[num_tokens, num_q_heads, head_dim]`."""
    k: Source
    """`[num_tokens, num_kv_heads, head_dim]`."""
    cos: Source
    """`[num_tokens, rotary_dim]`."""
    sin: Source
    """Like `cos`."""
    q_out: Target
    """Result, like `q` and contiguous."""
    k_out: Target
    """Result, like `k` and contiguous."""
    q_stride: Int64
    """Elements between the tokens of `q`."""
    k_stride: Int64
    angle_stride: Int64
    """Elements between the tokens of `cos` and of `sin`."""
    num_q_heads: Int64
    rotary_dim: Int64


@c_struct
class CopyArgs(ctypes.Structure):
    """A copy of rows of bytes between two arrays that do not overlap."""

    source: SourceBytes
    """`[num_source_rows, row_bytes]`."""
    target: TargetBytes
    """Result `[num_target_rows, row_bytes]`."""
    source_rows: SourceInt64
    """`[num_rows]`; null: the first ones, in order."""
    target_rows: SourceInt64
    """Like `source_rows`."""
    num_source_rows: Int64
    num_target_rows: Int64
    num_rows: Int64
    row_bytes: Int64
    is_past_caches: Flag
    """Stores bypass the CPU's caches."""


@c_struct
class NormArgs(ctypes.Structure):
    """A normalization of rows."""

    x: Source
    """`[num_rows / num_inner, num_inner, size]`."""
    residual: Target
    """`[num_rows, size]`: `x` is added to it first; or null."""
    weight: Source
    """`[size]` or null."""
    bias: Source
    """`[size]` in the dtype of the weight, or null."""
    out: Target
    """Result `[num_rows, size]`."""
    stride: Int64
    """Elements between the outer rows of `x`."""
    num_rows: Int64
    num_inner: Int64
    size: Int64
    num_threads: Int64
    is_bfloat16: Flag
    is_weight_bfloat16: Flag
    is_centered: Flag
    """The mean is subtracted first, as in layer normalization."""
    eps: Float


@c_struct
class ElementwiseArgs(ctypes.Structure):
    """A function of each number, times a factor."""

    x: Source
    """`[num_rows, size]`."""
    factor: Source
    """Like `x`, or null."""
    out: Target
    """Result `[num_rows, size]`, contiguous: `function(x) * factor`."""
    stride: Int64
    """Elements between the rows of `x` and of `factor`."""
    num_rows: Int64
    size: Int64
    num_threads: Int64
    is_bfloat16: Flag
    function: Int32
    """A `Function`."""


@c_struct
class RotaryAnglesArgs(ctypes.Structure):
    """Cosine and sine of each token's rotary angles: position times frequency."""

    positions: SourceInt64
    """`[num_tokens]`."""
    inv_freq: SourceFloat
    """`[rotary_dim]`; its second half is like its first."""
    cos: Target
    """Result `[num_tokens, rotary_dim]`, times the magnitude."""
    sin: Target
    """Like `cos`."""
    num_tokens: Int64
    rotary_dim: Int64
    num_threads: Int64
    magnitude: Float
    is_bfloat16: Flag


@c_struct
class SampleArgs(ctypes.Structure):
    """Sampling of one token from each row of logits; arrays but `logits` are `[num_rows]`."""

    logits: Source
    """`[num_rows, vocab_size]`."""
    seeds: SourceInt64
    positions: SourceInt64
    top_k: SourceInt64
    """0 is all."""
    temperature: SourceDouble
    """0 is greedy."""
    top_p: SourceDouble
    min_score: SourceDouble
    """Relative to the best token's."""
    tokens: TargetInt64
    """Result; a negative one is a `Refusal`."""
    stride: Int64
    """Elements between the rows of `logits`."""
    num_rows: Int64
    vocab_size: Int64
    num_threads: Int64
    is_bfloat16: Flag


@c_struct
class KernelCall(ctypes.Structure):
    """A kernel and its arguments, for a replay."""

    kernel: Source
    args: Source


KERNELS: Final[dict[type[ctypes.Structure], str]] = {
    DecodeAttentionArgs: "baton_decode_attention",
    VarlenAttentionArgs: "baton_varlen_attention",
    BidirectionalAttentionArgs: "baton_bidirectional_attention",
    KvWriteArgs: "baton_kv_write",
    RotateArgs: "baton_rotate",
    RotaryAnglesArgs: "baton_rotary_angles",
    CopyArgs: "baton_copy",
    NormArgs: "baton_norm",
    ElementwiseArgs: "baton_elementwise",
    PackArgs: "baton_pack",
    PackedLinearArgs: "baton_packed_linear",
    QuantizeArgs: "baton_quantize",
    Int8LinearArgs: "baton_int8_linear",
    QuantizedLinearArgs: "baton_quantized_linear",
    RoundInputsArgs: "baton_round_inputs",
    LoraArgs: "baton_lora",
    SampleArgs: "baton_sample",
    ExchangeArgs: "baton_exchange",
    SendArgs: "baton_send",
    ReceiveArgs: "baton_receive",
    AwaitTurnArgs: "baton_await_turn",
    SetTurnArgs: "baton_set_turn",
}
"""The kernel that takes each struct, by its exported name."""
STRUCTS: Final[tuple[type[ctypes.Structure], ...]] = (KvLayer, Meeting, *KERNELS, KernelCall)


def c_header() -> str:
    """Return `structs.h`, which the kernels are compiled against."""
    enums = {Function: "int32_t", Refusal: "int64_t", Status: "int", CacheDtype: "int32_t"}
    constants = {
        "kNotGated": NOT_GATED,
        "kPanelWidth": PANEL_WIDTH,
        "kLargestCode": LARGEST_CODE,
        "kLoraRanks": LORA_RANKS,
        "kLoraInputs": LORA_INPUTS,
        "kMassBits": MASS_BITS,
        "kNibbles": CodeLayout.NIBBLES,
        "kFloat8": CodeLayout.FLOAT8,
        "kIntegers": CodeLayout.INTEGERS,
    }
    return header(STRUCTS, enums, constants, KERNELS)
