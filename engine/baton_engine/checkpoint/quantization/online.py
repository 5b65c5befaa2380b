"""Quantization of weights that a checkpoint holds unquantized, while they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.quantization.methods import OnlineQuantization
from baton_kernels.cpu.int8 import quantize_rows
from baton_kernels.interface.quantized import (
    TABLES,
    Element,
    InputElement,
    InputRounding,
    QuantizedWeight,
    ScaleKind,
)
from baton_kernels.reference.quantized_product import MINI_FLOATS, power_of_two_scales

_E4M3: Final = MINI_FLOATS[InputElement.E4M3]
_E2M1: Final = MINI_FLOATS[InputElement.E2M1]
_E2M1_SIGN: Final = 8
"""The bit of a code's sign; the codes below it ascend with their values."""
_BLOCK: Final = 128
_MX_GROUP: Final = 32
_INT4_GROUP: Final = 128
_INT4_RANGE: Final = 15


def quantize(weight: Tensor, kind: OnlineQuantization) -> QuantizedWeight:
    """Return a weight `[out_features, in_features]` float32 as codes."""
    return _QUANTIZERS[kind](weight)


def _to_int8(weight: Tensor, rounding: InputRounding | None) -> QuantizedWeight:
    codes, scales = quantize_rows(weight)
    return QuantizedWeight(
        element=Element.INT8,
        codes=codes,
        scales=scales[:, None],
        group_size=weight.shape[1],
        input_rounding=rounding,
    )


def _to_fp8(weight: Tensor, *, is_per_channel: bool) -> QuantizedWeight:
    largest = weight.abs().amax(dim=1, keepdim=True)
    if not is_per_channel:
        largest = largest.amax().expand_as(largest)
    scales = (largest / _E4M3.largest).contiguous()
    return _fp8(weight, scales, scales, weight.shape[1], InputRounding(element=InputElement.E4M3))


def _to_fp8_blocks(weight: Tensor) -> QuantizedWeight:
    num_rows, num_columns = weight.shape
    padded = functional.pad(weight, (0, -num_columns % _BLOCK, 0, -num_rows % _BLOCK))
    blocks = padded.abs().view(len(padded) // _BLOCK, _BLOCK, -1, _BLOCK)
    largest = blocks.amax(dim=(1, 3))
    scales = (largest / _E4M3.largest).repeat_interleave(_BLOCK, dim=0)[:num_rows].contiguous()
    rounding = InputRounding(element=InputElement.E4M3, group_size=_BLOCK)
    return _fp8(weight, _spread(scales, _BLOCK, num_columns), scales, _BLOCK, rounding)


def _to_mxfp8(weight: Tensor) -> QuantizedWeight:
    num_columns = weight.shape[1]
    padded = functional.pad(weight, (0, -num_columns % _MX_GROUP)).view(len(weight), -1, _MX_GROUP)
    scales = power_of_two_scales(padded.abs().amax(dim=2), _E4M3)
    rounding = InputRounding(element=InputElement.E4M3, group_size=_MX_GROUP, scale_kind=ScaleKind.E8M0)
    stored = scales.to(torch.float8_e8m0fnu)
    return _fp8(weight, _spread(scales, _MX_GROUP, num_columns), stored, _MX_GROUP, rounding)


def _to_mxfp4(weight: Tensor) -> QuantizedWeight:
    num_columns = weight.shape[1]
    padded = functional.pad(weight, (0, -num_columns % _MX_GROUP)).view(len(weight), -1, _MX_GROUP)
    scales = power_of_two_scales(padded.abs().amax(dim=2), _E2M1)
    values = _E2M1.round(weight / _spread(scales, _MX_GROUP, num_columns))
    table = torch.tensor(TABLES[Element.E2M1][:_E2M1_SIGN])
    codes = torch.searchsorted(table, values.abs()).to(torch.uint8)
    codes |= (values < 0).to(torch.uint8) * _E2M1_SIGN
    return QuantizedWeight(
        element=Element.E2M1,
        codes=codes[:, 0::2] | codes[:, 1::2] << 4,
        scales=scales.to(torch.float8_e8m0fnu),
        group_size=_MX_GROUP,
    )


def _fp8(
    weight: Tensor, divisors: Tensor, scales: Tensor, group_size: int, rounding: InputRounding
) -> QuantizedWeight:
    codes = _E4M3.round(_divided(weight, divisors)).to(torch.float8_e4m3fn).view(torch.uint8)
    return QuantizedWeight(
        element=Element.E4M3, codes=codes, scales=scales, group_size=group_size, input_rounding=rounding
    )


def _to_int4(weight: Tensor) -> QuantizedWeight:
    num_columns = weight.shape[1]
    group_size = _INT4_GROUP if num_columns % _INT4_GROUP == 0 else num_columns
    groups = weight.view(len(weight), -1, group_size)
    low, high = groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)
    scales = (high - low) / _INT4_RANGE
    zeros = _divided(-low, scales).round_()
    divided = _divided(weight, _spread(scales, group_size, num_columns))
    codes = (divided.round_() + _spread(zeros, group_size, num_columns)).clamp_(0, _INT4_RANGE)
    codes = codes.to(torch.uint8)
    return QuantizedWeight(
        element=Element.UINT4,
        codes=codes[:, 0::2] | codes[:, 1::2] << 4,
        scales=scales,
        group_size=group_size,
        zeros=zeros.to(torch.int16),
    )


def _divided(weight: Tensor, scales: Tensor) -> Tensor:
    """Return `weight / scales`, and 0 where a scale is 0."""
    return torch.where(scales == 0, 0.0, weight / scales)


def _spread(per_group: Tensor, group_size: int, num_columns: int) -> Tensor:
    return per_group.repeat_interleave(group_size, dim=1)[:, :num_columns]


_QUANTIZERS: Final[dict[OnlineQuantization, Callable[[Tensor], QuantizedWeight]]] = {
    OnlineQuantization.INT8: partial(_to_int8, rounding=InputRounding(element=InputElement.INT8)),
    OnlineQuantization.INT8_WEIGHT_ONLY: partial(_to_int8, rounding=None),
    OnlineQuantization.FP8_PER_TENSOR: partial(_to_fp8, is_per_channel=False),
    OnlineQuantization.FP8_PER_CHANNEL: partial(_to_fp8, is_per_channel=True),
    OnlineQuantization.FP8_PER_BLOCK: _to_fp8_blocks,
    OnlineQuantization.MXFP8: _to_mxfp8,
    OnlineQuantization.MXFP4: _to_mxfp4,
    OnlineQuantization.INT4_WEIGHT_ONLY: _to_int4,
}
