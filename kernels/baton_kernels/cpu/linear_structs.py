"""Arguments of the C++ kernels of linear layers; see `structs`."""

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
    SourceFloat,
    SourceInt8,
    SourceInt32,
    SourceInt64,
    Target,
    TargetBytes,
    TargetFloat,
    TargetInt8,
    c_struct,
)

LORA_RANKS: Final = 4
"""Ranks of an adapter are padded to a multiple of it."""
LORA_INPUTS: Final = 32
"""Inputs of an adapter are padded to a multiple of it."""


class CodeLayout(IntEnum):
    """How the codes of a quantized weight lie in memory."""

    NIBBLES = 0
    """Two in a byte: the first half of a block of codes in the lower bits, the second in the upper. Where
    pairs of inputs lie together, four in a word, 32 codes apart; where quads do, blocks are of 128."""
    FLOAT8 = 1
    INTEGERS = 2


@c_struct
class PackArgs(ctypes.Structure):
    """The packing of a weight: rows become panels, in which what belongs to one column lies side by side."""

    source: SourceBytes
    """`[num_panels, panel_width, num_columns]` units."""
    target: TargetBytes
    """Result `[num_panels, num_columns, panel_width]` units."""
    num_panels: Int64
    panel_width: Int64
    num_columns: Int64
    unit_bytes: Int64
    """1, 2 or 4."""
    num_threads: Int64


@c_struct
class PackedLinearArgs(ctypes.Structure):
    """A linear layer with packed weights."""

    x: Source
    """`[num_rows, in_features]`; float32 where bfloat16 is not multiplied in pairs."""
    packed_weight: Source
    """`[num_panels, in_features / depth, panel_width, depth]`."""
    bias: Source
    """`[num_panels, panel_width]` or null."""
    out: Target
    """Result `[num_rows, out_features]`, or half of it if gated."""
    x_stride: Int64
    """Elements between the rows of `x`."""
    num_rows: Int64
    in_features: Int64
    out_features: Int64
    num_threads: Int64
    is_bfloat16: Flag
    """Dtype of the weight, the bias and the result; float32 otherwise."""
    function: Int32
    """A `Function` of the first half of the outputs, which multiplies the second; whole panels each.
    `NOT_GATED` keeps all outputs."""


@c_struct
class QuantizeArgs(ctypes.Structure):
    """A quantization of rows to 8-bit codes."""

    x: Source
    """`[num_rows, size]`."""
    codes: TargetInt8
    """Result `[num_rows, size]`, contiguous."""
    scales: TargetFloat
    """Result `[num_rows]`."""
    x_stride: Int64
    """Elements between the rows of `x`."""
    num_rows: Int64
    size: Int64
    num_threads: Int64
    is_bfloat16: Flag
    """Dtype of `x`; float32 otherwise."""


@c_struct
class Int8LinearArgs(ctypes.Structure):
    """A linear layer of 8-bit integers; on x86 the CPU must have AVX2."""

    x: Source
    """`[num_rows, in_features]`."""
    packed_weight: SourceInt8
    """`[num_panels, width / 4, panel_width, 4]`, zeros outside the weight (`baton_int8_layout`)."""
    offsets: SourceInt32
    """`[num_panels * panel_width]`, excess of each output where the codes of `x` are 128 too large."""
    scales: SourceFloat
    """`[num_panels * panel_width]`, scale of each output."""
    bias: SourceFloat
    """`[num_panels * panel_width]` or null."""
    out: Target
    """Result `[num_rows, out_features]`, or half of it if gated."""
    x_stride: Int64
    """Elements between the rows of `x`."""
    num_rows: Int64
    in_features: Int64
    out_features: Int64
    num_threads: Int64
    is_bfloat16: Flag
    """Dtype of `x` and `out`; float32 otherwise."""
    function: Int32
    """As in `PackedLinearArgs`."""


@c_struct
class QuantizedLinearArgs(ctypes.Structure):
    """A linear layer of quantized weights; panels are those of `PackedLinearArgs`."""

    x: Source
    """`[num_rows, in_features]`; float32 where bfloat16 is not multiplied in pairs, or 8-bit codes."""
    codes: Source
    """`[num_panels, in_features / depth, panel_width, depth]`, of 4 or 8 bits."""
    table: SourceFloat
    """The values of the 16 codes of 4 bits, or null."""
    scales: Source
    """`[num_panels, num_groups, panel_width]`."""
    zeros: SourceFloat
    """Shaped like `scales`, or null."""
    output_scales: SourceFloat
    """`[num_panels, panel_width]` or null."""
    bias: SourceFloat
    """`[num_panels, panel_width]` or null."""
    x_scales: SourceFloat
    """`[num_rows, num_x_groups]` or null: factors of the rows of `x`."""
    out: Target
    """Result `[num_rows, out_features]`, or half of it if gated."""
    x_stride: Int64
    """Elements between the rows of `x`."""
    num_rows: Int64
    in_features: Int64
    out_features: Int64
    chunk: Int64
    """Inputs whose products are summed before they are scaled; divides both sizes of groups."""
    group_size: Int64
    x_group_size: Int64
    num_x_groups: Int64
    num_threads: Int64
    element: Int32
    """A `CodeLayout`."""
    has_bfloat16_scales: Flag
    """Dtype of the scales; float32 otherwise."""
    is_bfloat16: Flag
    """Dtype of the result; float32 otherwise."""
    is_x_codes: Flag
    """True if `x` is 8-bit integers, with AMX alone; codes are then integers too, and `depth` is 4."""
    function: Int32
    """As in `PackedLinearArgs`."""


@c_struct
class RoundInputsArgs(ctypes.Structure):
    """A rounding of rows to 8-bit floats."""

    x: Source
    """`[num_rows, size]`."""
    out: Target
    """The codes as numbers of the dtype of `x`, `[num_rows, out_stride]`; zeros from `size` on."""
    scales: TargetFloat
    """`[num_rows, num_groups]`, by which the numbers are multiplied."""
    x_stride: Int64
    out_stride: Int64
    num_rows: Int64
    size: Int64
    group_size: Int64
    num_threads: Int64
    is_bfloat16: Flag
    """Dtype of `x`; float32 otherwise."""
    fixed_scale: Float
    """The scale of all groups; 0 takes each from its numbers."""


@c_struct
class LoraArgs(ctypes.Structure):
    """LoRA adapters of a linear layer with some parts side by side, or of an embedding with one."""

    x: Source
    """`[num_rows, in_features]`; unused for an embedding."""
    token_ids: SourceInt64
    """Inputs of an embedding `[num_rows]`, else null."""
    y: Target
    """`[num_rows, sum of part_sizes]`: deltas are added to it."""
    row_slots: SourceInt32
    """`[num_rows]`, the adapter of each row; negative is none."""
    downs: SourceInt64
    """`[num_slots]`, addresses of `[num_ranks, in_features]`, both padded, or of an embedding of
    `[in_features, num_ranks]`; 0 where an adapter changes nothing here."""
    ups: SourceInt64
    """`[num_slots]`, addresses of `[num_panels, rank, kPanelWidth]`, one behind the other for each part."""
    ranks: SourceInt32
    """`[num_slots, num_parts]`; 0 where an adapter does not change a part."""
    part_sizes: SourceInt64
    """`[num_parts]`, outputs of each part."""
    x_stride: Int64
    """Elements between the rows of `x`."""
    y_stride: Int64
    num_rows: Int64
    in_features: Int64
    num_slots: Int64
    num_parts: Int64
    num_threads: Int64
    is_bfloat16: Flag
    """Dtype of all numbers; float32 otherwise."""
