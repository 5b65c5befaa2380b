"""Products of codes whose groups have scales, in Triton, where matrix units apply the scales themselves.

Those of MXFP4, MXFP6 (as e4m3), MXFP8 and NVFP4, on devices that `product_paths` names.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.interface.quantized import InputElement, QuantizedWeight
from baton_kernels.triton.input_rounding import round_rows
from baton_kernels.triton.kernel_variant import TRITON_TYPES, KernelVariant
from baton_kernels.triton.product_paths import QuantizedLayer

_CODE_DTYPES: Final = {InputElement.E2M1: torch.uint8, InputElement.E4M3: torch.float8_e4m3fn}
_POINTERS: Final = {"e2m1": "*u8", "e4m3": "*fp8e4nv"}


@triton.jit
def _load_tile(ptr, rows, is_row, start, SIZE: tl.constexpr, INNER: tl.constexpr, PER_ITEM: tl.constexpr):
    """Items `[rows, INNER / PER_ITEM]` of inputs from `start` on; a row has `SIZE` inputs, 0 behind them."""
    row_items: tl.constexpr = (SIZE + PER_ITEM - 1) // PER_ITEM
    items = start // PER_ITEM + tl.arange(0, INNER // PER_ITEM)
    mask = is_row[:, None] & (items < row_items)[None, :]
    return tl.load(ptr + rows[:, None] * row_items + items[None, :], mask=mask, other=0.0)


@triton.jit(do_not_specialize=["num_rows", "divisor"])
def multiply_scaled(
    x_ptr,
    x_scales_ptr,
    codes_ptr,
    scales_ptr,
    output_scales_ptr,
    bias_ptr,
    out_ptr,
    divisor,
    num_rows,
    IN_SIZE: tl.constexpr,
    OUT_SIZE: tl.constexpr,
    X_FORMAT: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_OUTPUT_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    INNER: tl.constexpr,
):
    """`x @ weight.T / divisor + bias`, rounded once, of codes with a scale for each `GROUP` inputs.

    `x [num_rows, IN_SIZE]` and its scales are as `round_rows` writes codes. Grid: (tiles of num_rows, tiles
    of OUT_SIZE).
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    outs = tl.program_id(1).to(tl.int64) * OUTS + tl.arange(0, OUTS)
    is_row, is_out = rows < num_rows, outs < OUT_SIZE
    x_per_item: tl.constexpr = 2 if X_FORMAT == "e2m1" else 1
    per_item: tl.constexpr = 2 if FORMAT == "e2m1" else 1
    acc = tl.zeros([ROWS, OUTS], tl.float32)
    for start in range(0, IN_SIZE, INNER):
        x = _load_tile(x_ptr, rows, is_row, start, IN_SIZE, INNER, x_per_item)
        codes = _load_tile(codes_ptr, outs, is_out, start, IN_SIZE, INNER, per_item)
        x_scales = _load_tile(x_scales_ptr, rows, is_row, start, IN_SIZE, INNER, GROUP)
        scales = _load_tile(scales_ptr, outs, is_out, start, IN_SIZE, INNER, GROUP)
        acc = tl.dot_scaled(x, x_scales, X_FORMAT, tl.trans(codes), scales, FORMAT, acc)
    acc = acc / divisor
    if HAS_OUTPUT_SCALES:
        acc *= tl.load(output_scales_ptr + outs, mask=is_out, other=0.0)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outs, mask=is_out, other=0.0)[None, :]
    out_places = rows[:, None] * OUT_SIZE + outs[None, :]
    tl.store(out_ptr + out_places, acc.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_out[None, :])


class ScaledProduct:
    """A linear layer whose weight and inputs are codes with scales of groups.

    Its tile is the same for every number of rows, so that it is batch-invariant.
    """

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        self._weight = weight
        self._layer = QuantizedLayer.of(weight, bias)
        codes, scales = weight.codes.contiguous(), weight.scales.contiguous()
        self._codes = codes.view(_CODE_DTYPES[InputElement(weight.element.value)])
        self._scales = scales if scales.dtype == torch.float8_e4m3fn else scales.view(torch.uint8)
        none = torch.zeros(1, device=scales.device)
        self._output_scales = none if weight.output_scales is None else weight.output_scales
        self._bias = none if bias is None else bias.float()

    @property
    def packed_bytes(self) -> int:
        return self._weight.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]` of the same dtype."""
        layer, rounding = self._layer, self._weight.input_rounding
        assert rounding is not None
        out = torch.empty((len(x), layer.out_size), dtype=x.dtype, device=x.device)
        x = x if x.stride(-1) == 1 else x.contiguous()
        x, x_scales = round_rows(x, rounding, _CODE_DTYPES[layer.input_format], encodes_scales=True)
        variant = scaled_variant(out.dtype, layer)
        constants = variant.constexprs
        grid = (triton.cdiv(len(x), constants["ROWS"]), triton.cdiv(layer.out_size, constants["OUTS"]))
        tensors = (x, x_scales, self._codes, self._scales, self._output_scales, self._bias, out)
        variant.launch(grid, *tensors, rounding.global_scale, len(x))
        return out


@cache
def scaled_variant(dtype: torch.dtype, layer: QuantizedLayer) -> KernelVariant:
    """`multiply_scaled` of a layer for inputs of `dtype`."""
    scales = "*fp8e4nv" if layer.scale_dtype == torch.float8_e4m3fn else "*u8"
    pointers = {
        "x_ptr": _POINTERS[layer.input_format.value],
        "x_scales_ptr": scales,
        "codes_ptr": _POINTERS[layer.element.value],
        "scales_ptr": scales,
        "output_scales_ptr": "*fp32",
        "bias_ptr": "*fp32",
        "out_ptr": f"*{TRITON_TYPES[dtype]}",
    }
    return KernelVariant(
        kernel=multiply_scaled,
        signature={**pointers, "divisor": "fp32", "num_rows": "i32"},
        constexprs={
            "IN_SIZE": layer.in_size,
            "OUT_SIZE": layer.out_size,
            "X_FORMAT": layer.input_format.value,
            "FORMAT": layer.element.value,
            "GROUP": layer.group_size,
            "HAS_OUTPUT_SCALES": layer.has_output_scales,
            "HAS_BIAS": layer.has_bias,
            # Tensor memory takes block scales with 128 rows alone.
            "ROWS": 128,
            "OUTS": 64,
            "INNER": 128,
        },
        aligned=frozenset(pointers),
        num_warps=4,
        num_stages=3,
        min_arch=100,
        only_arch=0 if layer.input_format.value == layer.element.value else 100,
        instruction="block_scale",
    )
