"""Linear layers of quantized weights on a CPU by the C++ kernels: any element, groups and rounding of inputs.

Codes lie in the panels of `PackedProduct`, and are decoded a chunk of inputs at a time. A row is computed
alike whatever other rows there are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.c_struct import address_of
from baton_kernels.cpu.int8 import quantize_with
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.linear_structs import CodeLayout, QuantizedLinearArgs, RoundInputsArgs
from baton_kernels.cpu.memory import RESULTS, WEIGHTS
from baton_kernels.cpu.packed import PanelProduct, pack
from baton_kernels.interface.quantized import (
    TABLES,
    Element,
    InputElement,
    InputRounding,
    QuantizedWeight,
    ScaleKind,
)
from baton_kernels.reference.quantized_product import round_inputs_in_parts, unpacked_codes

_CHUNK: Final = 128
"""Most inputs of a chunk: `kChunkInputs` of the C++ sources."""
_NIBBLE_BLOCK: Final = 64
"""Most codes of 4 bits that lie together: as `kNibbleBlock`."""
_WORDS: Final = 32
"""Words of a block of codes of 4 bits where pairs of inputs lie together: four codes in each."""
_E4M3_NAN: Final = 0x7F
"""Bits of the code that is NaN, without its sign."""
_PAIR: Final = 2
_QUAD: Final = 4
_LAYOUTS: Final = {Element.E4M3: CodeLayout.FLOAT8, Element.INT8: CodeLayout.INTEGERS}
_EXACT_IN_BFLOAT16: Final = (torch.bfloat16, torch.float8_e8m0fnu, torch.float8_e4m3fn)


class QuantizedProduct(PanelProduct):
    """`x @ weight.T + bias` of a quantized weight, for rows of one dtype, float32 or bfloat16."""

    def __init__(
        self, library: CpuLibrary, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        self._library = library
        self._dtype = dtype
        self._rounding, self._order = weight.input_rounding, weight.input_order
        self._out_features, self._in_features = weight.out_features, weight.in_features
        layout = library.quantized_layout(dtype)
        self._multiplies_codes = library.variant.has_tiles and _are_integers(weight)
        self._panel_width, self._depth = layout.panel_width, _QUAD if self._multiplies_codes else layout.depth
        self._group_size = min(weight.group_size, weight.in_features)
        x_group = (self._rounding and self._rounding.group_size) or weight.in_features
        self._x_group_size = min(x_group, weight.in_features)
        self._chunk = _chunk(self._group_size, self._x_group_size, weight.in_features)
        self._layout = _LAYOUTS.get(weight.element, CodeLayout.NIBBLES)
        weight, bias = _without_nan(weight, bias)
        self._codes = self._pack(weight)
        self._table = torch.tensor(TABLES.get(weight.element, (0.0,) * 16))
        self._has_bfloat16_scales = weight.scales.dtype in _EXACT_IN_BFLOAT16
        scales_dtype = torch.bfloat16 if self._has_bfloat16_scales else torch.float32
        self._scales = WEIGHTS.copy(self._by_panel(weight.scales.float()).to(scales_dtype))
        self._zeros = None if weight.zeros is None else self._by_panel(weight.zeros.float())
        self._output_scales = self._padded(weight.output_scales)
        self._bias = self._padded(bias)

    @property
    def packed_bytes(self) -> int:
        kept = (self._codes, self._scales, self._zeros, self._output_scales)
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    def _run(self, x: Tensor, width: int, function: int) -> Tensor:
        out = RESULTS.empty((len(x), width), x.dtype)
        if self._order is not None:
            x = x[:, self._order]
        x_scales = None
        if self._multiplies_codes:
            x, scales = quantize_with(self._library, x)
            x_scales = scales[:, None]
        elif self._rounding is not None and _is_plain_e4m3(self._rounding):
            x, x_scales = self._round(x, self._rounding)
        elif self._rounding is not None:
            x, x_scales = round_inputs_in_parts(x, self._rounding)
        if not self._multiplies_codes:
            x = x.to(self._dtype if self._depth > 1 else torch.float32)
        if num_missing := -self._in_features % self._depth:
            x = functional.pad(x, (0, num_missing))
        x = x if x.stride(-1) == 1 else x.contiguous()
        args = QuantizedLinearArgs(
            x=x.data_ptr(),
            codes=self._codes.data_ptr(),
            table=self._table.data_ptr(),
            scales=self._scales.data_ptr(),
            zeros=address_of(self._zeros),
            output_scales=address_of(self._output_scales),
            bias=address_of(self._bias),
            x_scales=address_of(x_scales),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            num_rows=len(x),
            in_features=self._in_features,
            out_features=self._out_features,
            chunk=self._chunk,
            group_size=self._group_size,
            x_group_size=self._x_group_size,
            num_x_groups=1 if x_scales is None else x_scales.shape[1],
            num_threads=torch.get_num_threads(),
            element=self._layout,
            has_bfloat16_scales=self._has_bfloat16_scales,
            is_bfloat16=self._dtype == torch.bfloat16,
            is_x_codes=self._multiplies_codes,
            function=function,
        )
        self._library.run(args)
        return out

    def _round(self, x: Tensor, rounding: InputRounding) -> tuple[Tensor, Tensor]:
        """`round_inputs_in_parts` of 8-bit floats, in the dtype of `x`."""
        x = x if x.stride(-1) == 1 else x.contiguous()
        out = RESULTS.empty(tuple(x.shape), x.dtype)
        scales = torch.empty(len(x), -(-self._in_features // self._x_group_size))
        args = RoundInputsArgs(
            x=x.data_ptr(),
            out=out.data_ptr(),
            scales=scales.data_ptr(),
            x_stride=x.stride(0),
            out_stride=out.stride(0),
            num_rows=len(x),
            size=self._in_features,
            group_size=self._x_group_size,
            num_threads=torch.get_num_threads(),
            is_bfloat16=x.dtype == torch.bfloat16,
            fixed_scale=rounding.scale or 0.0,
        )
        self._library.run(args)
        return out, scales

    def _pack(self, weight: QuantizedWeight) -> Tensor:
        """Return the codes as `[num_panels, in_features / depth, panel_width, depth]`, of 8 bits or 4."""
        codes = unpacked_codes(weight)
        missing = -self._out_features % self._panel_width, -self._in_features % self._depth
        codes = functional.pad(codes, (0, missing[1], 0, missing[0]))
        if self._layout != CodeLayout.NIBBLES:
            return pack(self._library, codes, self._panel_width, self._depth)
        panels = codes.view(-1, self._panel_width, codes.shape[1] // self._depth, self._depth).transpose(1, 2)
        if self._depth == _PAIR:
            words = panels.reshape(-1, 2, 2, _WORDS)
            return WEIGHTS.copy(torch.stack((words[:, :, 0] | words[:, :, 1] << 4).unbind(1), dim=-1))
        half = self._panel_width if self._multiplies_codes else min(_NIBBLE_BLOCK, self._panel_width) // 2
        blocks = panels.reshape(-1, 2, half)
        return WEIGHTS.copy(blocks[:, 0] | blocks[:, 1] << 4)

    def _by_panel(self, per_group: Tensor) -> Tensor:
        """Return `[out_features, num_groups]` numbers as `[num_panels, num_groups, panel_width]`."""
        padded = functional.pad(per_group, (0, 0, 0, -len(per_group) % self._panel_width))
        return padded.view(-1, self._panel_width, padded.shape[1]).transpose(1, 2).contiguous()

    def _padded(self, per_output: Tensor | None) -> Tensor | None:
        if per_output is None:
            return None
        return functional.pad(per_output.float(), (0, -len(per_output) % self._panel_width))


def _without_nan(weight: QuantizedWeight, bias: Tensor | None) -> tuple[QuantizedWeight, Tensor | None]:
    """Return a weight of 8-bit floats without NaN; the outputs that it makes NaN have a bias of NaN."""
    if weight.element != Element.E4M3:
        return weight, bias
    is_nan = weight.codes & _E4M3_NAN == _E4M3_NAN
    if not is_nan.any():
        return weight, bias
    bias = torch.zeros(weight.out_features) if bias is None else bias
    lost = bias.masked_fill(is_nan.any(dim=1), torch.nan)
    return replace(weight, codes=weight.codes.masked_fill(is_nan, 0)), lost


def _chunk(group_size: int, x_group_size: int, in_features: int) -> int:
    """Return the inputs whose products are summed before they are scaled: within one group of both kinds."""
    sizes = [size for size in (group_size, x_group_size) if size < in_features]
    common = math.gcd(*sizes) if sizes else in_features
    if common <= _CHUNK:
        return common
    if not sizes:
        return _CHUNK
    step = math.gcd(common, _QUAD)  # pairs of inputs or quads lie together
    return max(size for size in range(step, _CHUNK + 1, step) if common % size == 0)


def _are_integers(weight: QuantizedWeight) -> bool:
    """Say whether weights and inputs are integers, inputs with a scale for each row, and groups are quads."""
    is_rounded = weight.input_rounding == InputRounding(element=InputElement.INT8)
    is_whole = weight.group_size % _QUAD == 0 or weight.group_size >= weight.in_features
    return is_rounded and is_whole and weight.element in (Element.INT4, Element.UINT4, Element.INT8)


def _is_plain_e4m3(rounding: InputRounding) -> bool:
    return rounding.element == InputElement.E4M3 and rounding.scale_kind == ScaleKind.FLOAT32


def can_pair_inputs(weight: QuantizedWeight) -> bool:
    """Say whether groups begin where pairs of inputs do."""
    x_group = weight.input_rounding and weight.input_rounding.group_size
    sizes = (weight.group_size, x_group or weight.in_features)
    return all(size % 2 == 0 or size >= weight.in_features for size in sizes)
