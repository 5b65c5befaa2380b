"""Quantized linear layers with torch alone: the values that codes stand for, and the products of them.

The reference for every other implementation, and what computes where there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.interface.quantized import (
    TABLES,
    Element,
    InputElement,
    InputRounding,
    QuantizedWeight,
    ScaleKind,
)

_ROWS_AT_ONCE: Final = 1024
"""Outputs whose values are in memory at a time."""
E4M3_MAX: Final = 448.0
_INT8_MAX: Final = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniFloat:
    """A float of few bits, without infinities, that saturates."""

    mantissa_bits: int
    min_exponent: int
    """Exponent of the smallest normal number; subnormals are below."""
    largest: float

    @property
    def max_exponent(self) -> int:
        return math.frexp(self.largest)[1] - 1

    def round(self, x: Tensor) -> Tensor:
        """Return the nearest numbers, of two the even one, float32."""
        exponents = torch.frexp(x).exponent.sub(1).clamp_(min=self.min_exponent)
        steps = torch.ldexp(torch.ones_like(x), exponents - self.mantissa_bits)
        return (x / steps).round_().mul_(steps).clamp_(-self.largest, self.largest)


MINI_FLOATS: Final = {
    InputElement.E4M3: MiniFloat(mantissa_bits=3, min_exponent=-6, largest=E4M3_MAX),
    InputElement.E2M1: MiniFloat(mantissa_bits=1, min_exponent=0, largest=6.0),
    InputElement.E2M3: MiniFloat(mantissa_bits=3, min_exponent=0, largest=7.5),
    InputElement.E3M2: MiniFloat(mantissa_bits=2, min_exponent=-2, largest=28.0),
}


def dequantize(weight: QuantizedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the values of a weight, `[out_features, in_features]`, the inputs in their own order.

    They are computed in `dtype`, float32 or float64, in the order in which the packages do that write such
    weights: scales of 8-bit floats are multiplied with those of outputs first.
    """
    values = element_values(weight.element, weight.codes, dtype)
    if weight.zeros is not None:
        values -= _spread(weight.zeros.to(dtype), weight)
    scales = weight.scales.to(torch.float32).to(dtype)
    factors = None if weight.output_scales is None else weight.output_scales.to(dtype)[:, None]
    if factors is not None and weight.scales.dtype == torch.float8_e4m3fn:
        scales, factors = scales * factors, None
    values *= _spread(scales, weight)
    if factors is not None:
        values *= factors
    if weight.input_order is None:
        return values
    return torch.empty_like(values).index_copy_(1, weight.input_order, values)


def element_values(element: Element, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the values of codes without their scales, `[num_rows, num_columns]`."""
    if element == Element.INT8:
        return codes.to(dtype)
    if element == Element.E4M3:
        return codes.view(torch.float8_e4m3fn).to(dtype)
    table = torch.tensor(TABLES[element], dtype=dtype, device=codes.device)
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    return table[nibbles.long()]


def _spread(per_group: Tensor, weight: QuantizedWeight) -> Tensor:
    """Repeat numbers of groups for each input."""
    if per_group.shape[1] == 1:
        return per_group
    return per_group.repeat_interleave(weight.group_size, dim=1)[:, : weight.in_features]


def unpacked_codes(weight: QuantizedWeight) -> Tensor:
    """Return the codes of a weight `[out_features, in_features]`, one in each byte."""
    if weight.element.bits == 8:
        return weight.codes
    return torch.stack((weight.codes & 15, weight.codes >> 4), dim=-1).flatten(-2)


def round_inputs(x: Tensor, rounding: InputRounding | None) -> Tensor:
    """Return `x` `[num_rows, in_features]` as the rounded inputs, in float32."""
    if rounding is None:
        return x.to(torch.float32)
    values, scales = round_inputs_in_parts(x, rounding)
    if rounding.group_size is None:
        return values * scales
    return values * scales.repeat_interleave(rounding.group_size, dim=1)[:, : x.shape[1]]


def round_inputs_in_parts(x: Tensor, rounding: InputRounding) -> tuple[Tensor, Tensor]:
    """Return the rounded inputs as numbers that bfloat16 holds exactly, and the factors of their groups.

    Both are float32: `[num_rows, in_features]` and `[num_rows, num_groups]`.
    """
    wide = x.to(torch.float32)
    if rounding.group_size is None:
        return _round_groups(wide, rounding)
    padded = functional.pad(wide, (0, -wide.shape[1] % rounding.group_size))
    groups = padded.view(len(x), padded.shape[1] // rounding.group_size, rounding.group_size)
    values, scales = _round_groups(groups, rounding)
    return values.flatten(1)[:, : x.shape[1]], scales.squeeze(-1)


def _round_groups(x: Tensor, rounding: InputRounding) -> tuple[Tensor, Tensor]:
    """Return the numbers and the scales of inputs, whose last axis has one scale."""
    if rounding.element == InputElement.INT8:
        return _round_to_int8(x, rounding)
    mini_float = MINI_FLOATS[rounding.element]
    scales = _scales(x, rounding, mini_float)
    return mini_float.round(torch.where(scales == 0, 0.0, x / scales)), scales


def _scales(x: Tensor, rounding: InputRounding, mini_float: MiniFloat) -> Tensor:
    largest = x.abs().amax(dim=-1, keepdim=True)
    if rounding.scale is not None:
        return torch.full_like(largest, rounding.scale)
    if rounding.scale_kind == ScaleKind.FLOAT32:
        scales = largest / mini_float.largest
    elif rounding.scale_kind == ScaleKind.E4M3:
        codes = MINI_FLOATS[InputElement.E4M3].round(largest / mini_float.largest * rounding.global_scale)
        scales = codes / rounding.global_scale
    else:
        scales = power_of_two_scales(largest, mini_float, rounding.scale_mantissa_bits)
    return scales.masked_fill_(~largest.isfinite(), torch.nan)


def power_of_two_scales(largest: Tensor, mini_float: MiniFloat, mantissa_bits: int | None = None) -> Tensor:
    """Return the powers of two by which numbers up to `largest`, float32, are divided.

    `largest` is rounded to a mantissa of so many bits first, by default the element's: then what rounds up to
    the next power counts so.
    """
    half_unit = 1 << (23 - (mantissa_bits or mini_float.mantissa_bits) - 1)
    rounded = (largest.view(torch.int32) + half_unit).view(torch.float32)
    exponents = torch.frexp(rounded).exponent - 1 - mini_float.max_exponent
    return torch.ldexp(torch.ones_like(largest), exponents.clamp(min=-127, max=127))


def _round_to_int8(x: Tensor, rounding: InputRounding) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax(dim=-1, keepdim=True)
    if rounding.scale is not None:
        zero_point = rounding.zero_point
        codes = (x / rounding.scale).round_().add_(zero_point).clamp_(-128, 127)
        return codes - zero_point, torch.full_like(largest, rounding.scale)
    if rounding.is_symmetric:
        scales = largest / _INT8_MAX
        return torch.where(scales == 0, 0.0, (x / scales).round_()), scales
    low, high = x.amin(dim=-1, keepdim=True).clamp(max=0), x.amax(dim=-1, keepdim=True).clamp(min=0)
    scales = (high - low) / 255
    zeros = torch.where(scales == 0, 0.0, (-128 - low / scales).round_())
    codes = torch.where(scales == 0, 0.0, (x / scales).round_()).add_(zeros).clamp_(-128, 127)
    return codes - zeros, scales


class TorchQuantizedProduct:
    """`x @ weight.T + bias` of a quantized weight on any device: values are made anew in each product."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        self._weight = weight
        self._parts = [
            weight.outputs(slice(start, start + _ROWS_AT_ONCE))
            for start in range(0, weight.out_features, _ROWS_AT_ONCE)
        ]
        self._bias = None if bias is None else bias.float()

    @property
    def packed_bytes(self) -> int:
        return self._weight.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]` of the same dtype."""
        rounded = round_inputs(x, self._weight.input_rounding)
        out = torch.cat([rounded @ dequantize(part).T for part in self._parts], dim=1)
        return (out if self._bias is None else out + self._bias).to(x.dtype)
