"""Quantized weights of random codes, and inputs' roundings, for the tests of products."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from baton_kernels.interface.quantized import Element, InputElement, InputRounding, QuantizedWeight, ScaleKind
from baton_kernels.reference.quantized_product import dequantize, round_inputs

E8M0, E4M3 = torch.float8_e8m0fnu, torch.float8_e4m3fn
WHOLE_ROW: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCase:
    """A quantized layer, by what tells kernels apart."""

    element: Element
    scale_dtype: torch.dtype = torch.float32
    group_size: int = WHOLE_ROW
    has_zeros: bool = False
    has_output_scales: bool = False
    has_order: bool = False
    has_bias: bool = False
    rounding: InputRounding | None = None
    dtype: torch.dtype = torch.float32
    in_features: int = 160
    out_features: int = 70


ROUNDINGS: Final = {
    "int8_token": InputRounding(element=InputElement.INT8),
    "int8_asymmetric": InputRounding(element=InputElement.INT8, is_symmetric=False),
    "int8_static": InputRounding(element=InputElement.INT8, scale=0.02, zero_point=3),
    "int8_groups": InputRounding(element=InputElement.INT8, group_size=32),
    "e4m3_token": InputRounding(element=InputElement.E4M3),
    "e4m3_static": InputRounding(element=InputElement.E4M3, scale=0.005),
    "e4m3_groups": InputRounding(element=InputElement.E4M3, group_size=64),
    **{
        f"mx_{element.value}": InputRounding(element=element, group_size=32, scale_kind=ScaleKind.E8M0)
        for element in (InputElement.E4M3, InputElement.E2M1, InputElement.E2M3, InputElement.E3M2)
    },
    "mx_e4m3_one_bit": InputRounding(
        element=InputElement.E4M3, group_size=32, scale_kind=ScaleKind.E8M0, scale_mantissa_bits=1
    ),
    "nvfp4": InputRounding(
        element=InputElement.E2M1, group_size=16, scale_kind=ScaleKind.E4M3, global_scale=300.0
    ),
}
_BRAIN, _HALF = torch.bfloat16, torch.float16
CASES: Final = {
    "int4": WeightCase(element=Element.INT4, scale_dtype=_BRAIN, group_size=32, dtype=_BRAIN, has_bias=True),
    "uint4": WeightCase(
        element=Element.UINT4, scale_dtype=_HALF, group_size=64, has_zeros=True, has_order=True, dtype=_HALF
    ),
    "uint4_row": WeightCase(element=Element.UINT4, has_zeros=True, has_output_scales=True),
    "nf4": WeightCase(element=Element.NF4, group_size=64),
    "e4m3": WeightCase(element=Element.E4M3, rounding=ROUNDINGS["e4m3_token"], dtype=_BRAIN, has_bias=True),
    "e4m3_blocks": WeightCase(element=Element.E4M3, group_size=128, rounding=ROUNDINGS["e4m3_groups"]),
    "int8": WeightCase(element=Element.INT8, rounding=ROUNDINGS["int8_token"], dtype=_BRAIN),
    "int8_groups": WeightCase(element=Element.INT8, group_size=32, rounding=ROUNDINGS["int8_groups"]),
    "int8_alone": WeightCase(element=Element.INT8, group_size=32, has_zeros=True, dtype=_BRAIN),
    "int8_asymmetric": WeightCase(element=Element.INT8, rounding=ROUNDINGS["int8_asymmetric"], dtype=_HALF),
    "int8_static": WeightCase(element=Element.INT8, rounding=ROUNDINGS["int8_static"]),
    "uint4_int8": WeightCase(
        element=Element.UINT4, group_size=32, has_zeros=True, rounding=ROUNDINGS["int8_token"]
    ),
    "int4_int8": WeightCase(element=Element.INT4, group_size=128, rounding=ROUNDINGS["int8_token"]),
    "mxfp4": WeightCase(
        element=Element.E2M1, scale_dtype=E8M0, group_size=32, rounding=ROUNDINGS["mx_e2m1"], dtype=_BRAIN
    ),
    "mxfp8": WeightCase(element=Element.E4M3, scale_dtype=E8M0, group_size=32, rounding=ROUNDINGS["mx_e4m3"]),
    "nvfp4": WeightCase(
        element=Element.E2M1,
        scale_dtype=E4M3,
        group_size=16,
        has_output_scales=True,
        rounding=ROUNDINGS["nvfp4"],
        dtype=_BRAIN,
    ),
}
GPU_CASES: Final = {
    **CASES,
    "fp4": WeightCase(element=Element.FP4, group_size=64),
    "mxfp4_mxfp8": WeightCase(
        element=Element.E2M1, scale_dtype=E8M0, group_size=32, rounding=ROUNDINGS["mx_e4m3"]
    ),
}
"""`CASES`, and what Triton alone decodes in a way of its own."""


def make_weight(case: WeightCase, generator: torch.Generator) -> tuple[QuantizedWeight, Tensor | None]:
    """Return a weight of every code and the bias; scales bring values near 1."""
    n, k = case.out_features, case.in_features
    group_size = case.group_size or k
    groups = (n, -(-k // group_size))
    num_bytes = k * case.element.bits // 8
    codes = torch.randint(0, 256, (n, num_bytes), generator=generator, dtype=torch.uint8)
    if case.element == Element.E4M3:
        codes[(codes & 0x7F) == 0x7F] = 0
    if case.element == Element.INT8:
        codes = codes.view(torch.int8)
    typical = {Element.E4M3: 2**-7, Element.INT8: 2**-6}.get(case.element, 2**-3)
    scales = torch.rand(groups, generator=generator).add(0.5).mul(typical)
    if case.scale_dtype == E8M0:
        scales = torch.exp2(scales.log2().round())
    zeros = torch.randint(0, 16, groups, generator=generator, dtype=torch.int16) if case.has_zeros else None
    factors = torch.rand(n, generator=generator).add(0.5) if case.has_output_scales else None
    order = torch.randperm(k, generator=generator) if case.has_order else None
    bias = torch.randn(n, generator=generator).to(case.dtype) if case.has_bias else None
    weight = QuantizedWeight(
        element=case.element,
        codes=codes,
        scales=scales.to(case.scale_dtype),
        group_size=group_size,
        zeros=zeros,
        output_scales=factors,
        input_order=order,
        input_rounding=case.rounding,
    )
    return weight, bias


def expected_product(weight: QuantizedWeight, bias: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the product in float64, and the sum of its terms' magnitudes, which errors are relative to."""
    order = weight.input_order
    values = dequantize(replace(weight, input_order=None), torch.float64)
    rounded = round_inputs(x if order is None else x[:, order], weight.input_rounding).double()
    out = rounded @ values.T
    magnitude = rounded.abs() @ values.abs().T
    if bias is not None:
        out, magnitude = out + bias.double(), magnitude + bias.double().abs()
    return out, magnitude
