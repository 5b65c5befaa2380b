"""Quantized linear layers in Triton, in the ways that `product_paths` names.

Where matrix units do not take the codes, they are decoded in registers, a tile at a time, exactly in the type
of the inputs, except those of NF4 and FP4. Scales multiply partial sums in float32.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache, partial
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.interface.kernels import Product
from baton_kernels.interface.quantized import (
    TABLES,
    Element,
    InputElement,
    InputRounding,
    QuantizedWeight,
    ScaleKind,
)
from baton_kernels.triton.input_rounding import round_rows
from baton_kernels.triton.kernel_variant import FP8_ARCH, TRITON_TYPES, KernelVariant, device_arch
from baton_kernels.triton.mini_floats import _decode_e2m1, _decode_e4m3, _decode_e8m0
from baton_kernels.triton.product_paths import MIN_INNER, ProductPath, QuantizedLayer, path_of
from baton_kernels.triton.scaled_product import ScaledProduct, scaled_variant
from baton_kernels.triton.tiles import PRECISION

FEW_ROWS: Final = 16
"""Rows of the least tile that matrix units take."""
_CODE_DTYPES: Final = {ProductPath.INT8: torch.int8, ProductPath.FP8: torch.float8_e4m3fn}
_CODE_POINTERS: Final = {ProductPath.INT8: "*i8", ProductPath.FP8: "*fp8e4nv"}
_INSTRUCTIONS: Final = {ProductPath.INT8: r"\.s8\.s8", ProductPath.FP8: r"\.e4m3\.e4m3|kind::f8f6f4"}
_BYTE_SCALES: Final = {torch.float8_e8m0fnu: "e8m0", torch.float8_e4m3fn: "e4m3"}


@triton.jit
def _decode(codes, table_ptr, ELEMENT: tl.constexpr):
    """Values of codes in float32; those of 8 bits that are multiplied as they are stay so."""
    if ELEMENT == "int8" or ELEMENT == "fp8":
        values = codes
    elif ELEMENT == "e4m3":
        values = _decode_e4m3(codes)
    elif ELEMENT == "e2m1":
        values = _decode_e2m1(codes)
    elif ELEMENT == "nf4" or ELEMENT == "fp4":
        values = tl.load(table_ptr + codes)
    elif ELEMENT == "int4":
        values = codes.to(tl.float32) - 8.0
    else:
        values = codes.to(tl.float32)
    return values


@triton.jit
def _load_values(
    codes_ptr,
    table_ptr,
    outs,
    is_out,
    start,
    ELEMENT: tl.constexpr,
    IN_SIZE: tl.constexpr,
    INNER: tl.constexpr,
):
    """Values `[outs, INNER]` of the codes of inputs from `start` on."""
    if ELEMENT == "int8" or ELEMENT == "fp8" or ELEMENT == "e4m3":
        inner = start + tl.arange(0, INNER)
        mask = is_out[:, None] & (inner < IN_SIZE)[None, :]
        codes = tl.load(codes_ptr + outs[:, None] * IN_SIZE + inner[None, :], mask=mask, other=0.0)
    else:
        pairs = start // 2 + tl.arange(0, INNER // 2)
        mask = is_out[:, None] & (pairs < IN_SIZE // 2)[None, :]
        both = tl.load(codes_ptr + outs[:, None] * (IN_SIZE // 2) + pairs[None, :], mask=mask, other=0)
        codes = tl.interleave(both & 15, both >> 4)
    return _decode(codes, table_ptr, ELEMENT)


@triton.jit
def _load_scales(scales_ptr, places, mask, SCALE: tl.constexpr):
    """Scales in float32."""
    scales = tl.load(scales_ptr + places, mask=mask, other=0)
    if SCALE == "e8m0":
        values = _decode_e8m0(scales)
    elif SCALE == "e4m3":
        values = _decode_e4m3(scales)
    else:
        values = scales.to(tl.float32)
    return values


@triton.jit(do_not_specialize=["num_rows"])
def multiply_quantized(
    x_ptr,
    x_scales_ptr,
    codes_ptr,
    scales_ptr,
    zeros_ptr,
    output_scales_ptr,
    bias_ptr,
    table_ptr,
    out_ptr,
    num_rows,
    stride_row,
    IN_SIZE: tl.constexpr,
    OUT_SIZE: tl.constexpr,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    GROUP: tl.constexpr,
    X_GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_OUTPUT_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`x @ weight.T + bias` of a quantized weight, `x [num_rows, IN_SIZE]`, rounded once.

    Grid: (tiles of num_rows, tiles of OUT_SIZE). A tile of `INNER` inputs lies in one group of the weight
    and in one of `X_GROUP` inputs, whose scales are `x_scales [num_rows, groups]`; 0 is an x without scales.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    outs = tl.program_id(1).to(tl.int64) * OUTS + tl.arange(0, OUTS)
    is_row, is_out = rows < num_rows, outs < OUT_SIZE
    num_groups: tl.constexpr = (IN_SIZE + GROUP - 1) // GROUP
    acc = tl.zeros([ROWS, OUTS], tl.float32)
    for start in range(0, IN_SIZE, INNER):
        inner = start + tl.arange(0, INNER)
        x_mask = is_row[:, None] & (inner < IN_SIZE)[None, :]
        x = tl.load(x_ptr + rows[:, None] * stride_row + inner[None, :], mask=x_mask, other=0.0)
        values = _load_values(codes_ptr, table_ptr, outs, is_out, start, ELEMENT, IN_SIZE, INNER)
        places = outs * num_groups + start // GROUP
        if HAS_ZEROS:
            zeros = tl.load(zeros_ptr + places, mask=is_out, other=0).to(tl.float32)
            values = values.to(tl.float32) - zeros[:, None]
        if values.dtype != x.dtype:
            values = values.to(tl.float32).to(x.dtype)
        sums = tl.dot(x, tl.trans(values), input_precision=PRECISION).to(tl.float32)
        sums *= _load_scales(scales_ptr, places, is_out, SCALE)[None, :]
        if X_GROUP > 0:
            x_places = rows * ((IN_SIZE + X_GROUP - 1) // X_GROUP) + start // X_GROUP
            sums *= tl.load(x_scales_ptr + x_places, mask=is_row, other=0.0)[:, None]
        acc += sums
    if HAS_OUTPUT_SCALES:
        acc *= tl.load(output_scales_ptr + outs, mask=is_out, other=0.0)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outs, mask=is_out, other=0.0)[None, :]
    out_places = rows[:, None] * OUT_SIZE + outs[None, :]
    tl.store(out_ptr + out_places, acc.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_out[None, :])


class TritonQuantizedProduct:
    """A linear layer that keeps its weight as codes; matrix units apply no scales."""

    def __init__(
        self, weight: QuantizedWeight, bias: Tensor | None, path: ProductPath, *, is_invariant: bool
    ) -> None:
        self._weight = weight
        self._layer = QuantizedLayer.of(weight, bias)
        self._path = path
        self._is_invariant = is_invariant
        codes = weight.codes.contiguous()
        self._codes = codes.view(_CODE_DTYPES[path]) if path == ProductPath.FP8 else codes
        is_byte = weight.scales.dtype in _BYTE_SCALES
        scales = weight.scales.contiguous()
        self._scales = scales.view(torch.uint8) if is_byte else scales
        table = TABLES.get(weight.element, (0.0,))
        self._table = torch.tensor(table, dtype=torch.float32, device=scales.device)
        self._zeros = self._table if weight.zeros is None else weight.zeros.contiguous()
        self._output_scales = self._table if weight.output_scales is None else weight.output_scales
        self._bias = self._table if bias is None else bias.float()

    @property
    def packed_bytes(self) -> int:
        return self._weight.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]` of the same dtype."""
        weight, layer = self._weight, self._layer
        out = torch.empty((len(x), layer.out_size), dtype=x.dtype, device=x.device)
        x = x if weight.input_order is None else x.index_select(1, weight.input_order)
        x = x if x.stride(-1) == 1 else x.contiguous()
        x_scales = self._table
        if layer.rounding is not None:
            x, x_scales = round_rows(x, layer.rounding, _CODE_DTYPES.get(self._path, x.dtype))
        is_few_rows = len(x) <= FEW_ROWS and not self._is_invariant
        variant = quantized_variant(out.dtype, layer, self._path, is_few_rows)
        constants = variant.constexprs
        grid = (triton.cdiv(len(x), constants["ROWS"]), triton.cdiv(layer.out_size, constants["OUTS"]))
        tensors = (self._codes, self._scales, self._zeros, self._output_scales, self._bias, self._table)
        variant.launch(grid, x, x_scales, *tensors, out, len(x), x.stride(0))
        return out


def quantized_product(weight: QuantizedWeight, bias: Tensor | None, *, is_invariant: bool) -> Product | None:
    """Return the layer of a weight; None where its groups are not of a multiple of 16 inputs.

    Invariant layers have one tile shape for every number of rows.
    """
    layer = QuantizedLayer.of(weight, bias)
    if layer.inner(FEW_ROWS) < MIN_INNER[2]:
        return None
    path = path_of(layer, device_arch())
    if path == ProductPath.SCALED:
        return ScaledProduct(weight, bias)
    return TritonQuantizedProduct(weight, bias, path, is_invariant=is_invariant)


@cache
def quantized_variant(
    dtype: torch.dtype, layer: QuantizedLayer, path: ProductPath, is_few_rows: bool
) -> KernelVariant:
    """`multiply_quantized` of a layer for inputs of `dtype`; `is_few_rows` for at most `FEW_ROWS`."""
    is_fp8, is_wide = path == ProductPath.FP8, path == ProductPath.DECODED and dtype == torch.float32
    scales = "u8" if layer.scale_dtype in _BYTE_SCALES else TRITON_TYPES[layer.scale_dtype]
    pointers = {
        "x_ptr": _CODE_POINTERS.get(path, f"*{TRITON_TYPES[dtype]}"),
        "x_scales_ptr": "*fp32",
        "codes_ptr": "*i8" if layer.element == Element.INT8 else "*fp8e4nv" if is_fp8 else "*u8",
        "scales_ptr": f"*{scales}",
        "zeros_ptr": "*i16" if layer.has_zeros else "*fp32",
        **dict.fromkeys(("output_scales_ptr", "bias_ptr", "table_ptr"), "*fp32"),
        "out_ptr": f"*{TRITON_TYPES[dtype]}",
    }
    return KernelVariant(
        kernel=multiply_quantized,
        signature={**pointers, "num_rows": "i32", "stride_row": "i32"},
        constexprs={
            "IN_SIZE": layer.in_size,
            "OUT_SIZE": layer.out_size,
            "ELEMENT": "fp8" if is_fp8 else layer.element.value,
            "SCALE": _BYTE_SCALES.get(layer.scale_dtype, "float"),
            "GROUP": layer.group_size,
            "X_GROUP": layer.input_group,
            "HAS_ZEROS": layer.has_zeros,
            "HAS_OUTPUT_SCALES": layer.has_output_scales,
            "HAS_BIAS": layer.has_bias,
            "ROWS": FEW_ROWS if is_few_rows else 32 if is_wide else 64,
            "OUTS": 32 if is_few_rows or is_wide else 64,
            "INNER": layer.inner(128 if is_fp8 else 32 if is_wide else 64),
            "PRECISION": PRECISION,
        },
        aligned=frozenset((*pointers, "stride_row")),
        num_warps=4,
        num_stages=3,
        blackwell_registers=168 if is_few_rows else None,
        min_arch=FP8_ARCH if is_fp8 else 80,
        instruction=None if is_few_rows and is_fp8 else _INSTRUCTIONS.get(path),
    )


def aot_variants() -> Iterator[KernelVariant]:
    """Each element with its usual groups, types and roundings, in each way, for few rows and many."""
    decoded = ProductPath.DECODED
    for layer in _aot_layers():
        paths = dict.fromkeys(path_of(layer, arch) for arch in (80, 90, 100))
        for path, is_few_rows in itertools.product(paths, (True, False)):
            if path != ProductPath.SCALED:
                yield quantized_variant(torch.bfloat16, layer, path, is_few_rows)
        if ProductPath.SCALED in paths:
            yield scaled_variant(torch.bfloat16, layer)
    mx = InputRounding(element=InputElement.E4M3, group_size=32, scale_kind=ScaleKind.E8M0)
    yield scaled_variant(torch.bfloat16, _aot_layer(Element.E2M1, 32, torch.float8_e8m0fnu, mx))
    yield quantized_variant(torch.float16, _aot_layer(Element.UINT4, 128, torch.float16), decoded, False)
    yield quantized_variant(torch.float32, _aot_layer(Element.E4M3, 4096, torch.float32), decoded, False)


def _aot_layers() -> Iterator[QuantizedLayer]:
    e8m0, e4m3 = torch.float8_e8m0fnu, torch.float8_e4m3fn
    short = partial(InputRounding, element=InputElement.E2M1)
    long = partial(InputRounding, element=InputElement.E4M3)
    yield _aot_layer(Element.INT4, 128, torch.bfloat16)
    yield _aot_layer(Element.INT4, 128, torch.bfloat16, InputRounding(element=InputElement.INT8))
    yield _aot_layer(Element.UINT4, 128, torch.float16)
    yield _aot_layer(Element.NF4, 64, torch.float32)
    yield _aot_layer(Element.E2M1, 32, e8m0, short(group_size=32, scale_kind=ScaleKind.E8M0))
    yield _aot_layer(Element.E2M1, 16, e4m3, short(group_size=16, scale_kind=ScaleKind.E4M3))
    yield _aot_layer(Element.E4M3, 32, e8m0, long(group_size=32, scale_kind=ScaleKind.E8M0))
    yield _aot_layer(Element.E4M3, 4096, torch.float32, long())
    yield _aot_layer(Element.E4M3, 128, torch.float32, long(group_size=128))
    yield _aot_layer(Element.INT8, 4096, torch.float32, InputRounding(element=InputElement.INT8))
    yield _aot_layer(Element.INT8, 128, torch.bfloat16)


def _aot_layer(
    element: Element, group_size: int, scale_dtype: torch.dtype, rounding: InputRounding | None = None
) -> QuantizedLayer:
    return QuantizedLayer(
        in_size=4096,
        out_size=14336,
        element=element,
        scale_dtype=scale_dtype,
        group_size=group_size,
        rounding=rounding,
        has_zeros=element == Element.UINT4,
        has_output_scales=scale_dtype == torch.float8_e4m3fn,
        has_bias=group_size == 128,
    )
