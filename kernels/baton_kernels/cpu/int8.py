"""Linear layers of 8-bit integers on a CPU: weights quantized by output at the start, rows when they come.

A number is about `code * scale`. Codes of rows are symmetric, -127 to 127; those of a stored weight may be
-128. Products of codes are summed as exact integers, so every implementation here has the same sums, and a
row's result does not depend on other rows.
Called from the engine thread only.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.c_struct import address_of
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.linear_structs import Int8LinearArgs, QuantizeArgs
from baton_kernels.cpu.memory import RESULTS
from baton_kernels.cpu.packed import PanelProduct, pack
from baton_kernels.cpu.structs import LARGEST_CODE
from baton_kernels.cpu.variants import CpuVariant
from baton_kernels.interface.quantized import Element, InputElement, InputRounding, QuantizedWeight

_LARGEST_PRODUCT: Final = LARGEST_CODE * (LARGEST_CODE + 1)
MAX_IN_FEATURES: Final = (2**31 - 1) // _LARGEST_PRODUCT
"""The sum of more products need not fit 32 bits."""
_EXACT_COLUMNS: Final = 2**24 // _LARGEST_PRODUCT
"""Sums of so many products are integers that float32 holds, in any order."""


def can_multiply_codes(variant: CpuVariant) -> bool:
    """Say whether a build multiplies codes faster than torch: with AVX2, and with AVX512-VNNI where that is
    there.
    """
    return "avx2" in variant.needs


def is_int8(weight: QuantizedWeight) -> bool:
    """Say whether a layer multiplies codes with codes and has one scale for each output and each row.

    Raises: ValueError: it has more than `MAX_IN_FEATURES` inputs.
    """
    is_plain = weight.zeros is None and weight.output_scales is None and weight.input_order is None
    is_alike = weight.element == Element.INT8 and weight.group_size >= weight.in_features
    if not (is_plain and is_alike and weight.input_rounding == InputRounding(element=InputElement.INT8)):
        return False
    if weight.in_features > MAX_IN_FEATURES:
        raise ValueError(f"a weight has {weight.in_features} inputs; allowed: at most {MAX_IN_FEATURES}")
    return True


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes `[num_rows, size] int8` and scales `[num_rows] float32` of `x` `[num_rows, size]`.

    A scale is the row's largest magnitude divided by 127, so an error is at most half a scale. A row that is
    not finite has codes 0 and the scale NaN: what is computed of it is NaN. One whose numbers are all below
    4e-37 counts as zeros.
    """
    wide = x.to(torch.float32)
    largest = wide.abs().amax(dim=1)
    inverse = torch.full_like(largest, LARGEST_CODE) / largest  # a plain number would multiply a reciprocal
    is_finite = largest.isfinite()
    is_used = is_finite & inverse.isfinite()
    scaled = wide * torch.where(is_used, inverse, 0.0)[:, None]
    codes = scaled.round_().nan_to_num_(nan=0.0).to(torch.int8)
    scales = torch.where(is_used, largest / LARGEST_CODE, 0.0).masked_fill_(~is_finite, torch.nan)
    return codes, scales


def quantize_with(library: CpuLibrary, x: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_rows` in one pass over float32 or bfloat16, without copies of `x`."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    num_rows, size = x.shape
    codes, scales = torch.empty(num_rows, size, dtype=torch.int8), torch.empty(num_rows)
    args = QuantizeArgs(
        x=x.data_ptr(),
        codes=codes.data_ptr(),
        scales=scales.data_ptr(),
        x_stride=x.stride(0),
        num_rows=num_rows,
        size=size,
        num_threads=torch.get_num_threads(),
        is_bfloat16=x.dtype == torch.bfloat16,
    )
    library.run(args)
    return codes, scales


class PackedInt8Product(PanelProduct):
    """Four inputs of each output lie side by side; takes rows of float32 or bfloat16 and returns the like."""

    def __init__(self, library: CpuLibrary, weight: QuantizedWeight, bias: Tensor | None) -> None:
        self._library = library
        self._out_features, in_features = weight.out_features, weight.in_features
        codes, scales = weight.codes, weight.scales.float().flatten()
        layout = library.int8_layout()
        self._panel_width = layout.panel_width
        num_missing = -self._out_features % layout.panel_width
        codes = functional.pad(codes, (0, -in_features % layout.input_multiple, 0, num_missing))
        self._packed_weight = pack(library, codes, layout.panel_width, layout.depth)
        self._offsets = codes.sum(dim=1, dtype=torch.int32) * (LARGEST_CODE + 1)
        self._scales = functional.pad(scales, (0, num_missing))
        self._bias = None if bias is None else functional.pad(bias.float(), (0, num_missing))

    @property
    def packed_bytes(self) -> int:
        return self._packed_weight.nbytes + self._offsets.nbytes + self._scales.nbytes

    def _run(self, x: Tensor, width: int, function: int) -> Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        num_rows, in_features = x.shape
        out = RESULTS.empty((num_rows, width), x.dtype)
        args = Int8LinearArgs(
            x=x.data_ptr(),
            packed_weight=self._packed_weight.data_ptr(),
            offsets=self._offsets.data_ptr(),
            scales=self._scales.data_ptr(),
            bias=address_of(self._bias),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            num_rows=num_rows,
            in_features=in_features,
            out_features=self._out_features,
            num_threads=torch.get_num_threads(),
            is_bfloat16=x.dtype == torch.bfloat16,
            function=function,
        )
        self._library.run(args)
        return out


class TorchInt8Product:
    """The same with torch alone, on any CPU: products of codes in float32, as many at a time as are exact."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        self._codes, self._scales = weight.codes, weight.scales.float().flatten()
        self._bias = None if bias is None else bias.float()

    @property
    def packed_bytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        codes, scales = quantize_rows(x)
        sums = torch.zeros(len(x), len(self._codes), dtype=torch.int32)
        columns = (torch.split(side, _EXACT_COLUMNS, dim=1) for side in (codes, self._codes))
        for left, right in zip(*columns, strict=True):
            sums += (left.float() @ right.float().T).to(torch.int32)
        out = sums.float() * self._scales * scales[:, None]
        return (out if self._bias is None else out + self._bias).to(x.dtype)
