"""Ways in which a GPU multiplies quantized layers, and the one that a layer gets on a device.

The choice depends on the layer and the compute capability alone, so that a layer has the same numerics
wherever its model runs on the same kind of device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch
from torch import Tensor

from baton_kernels.interface.quantized import Element, InputElement, InputRounding, QuantizedWeight, ScaleKind

MIN_INNER: Final = {1: 32, 2: 16, 4: 16}
"""Least number of inputs in a tile, by the size of an input in bytes."""
_NEWEST: Final = 1000
"""A compute capability, times ten, that no device has reached."""


class ProductPath(StrEnum):
    """The numbers that matrix units multiply."""

    DECODED = "decoded"
    """Both as numbers of the dtype of the inputs."""
    INT8 = "int8"
    """Both as 8-bit integers, into 32-bit integers."""
    FP8 = "fp8"
    """Both as e4m3 codes; float32 sums of at most 128 products are scaled and added in float32."""
    SCALED = "scaled"
    """Both as e4m3 or e2m1 codes with the scales of their groups, which the units apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayer:
    """The choices on which the machine code of a layer's product depends."""

    in_size: int
    out_size: int
    element: Element
    scale_dtype: torch.dtype
    group_size: int
    rounding: InputRounding | None
    has_zeros: bool
    has_output_scales: bool
    has_bias: bool

    @classmethod
    def of(cls, weight: QuantizedWeight, bias: Tensor | None) -> QuantizedLayer:
        """Return the choices of a weight and its bias."""
        return cls(
            in_size=weight.in_features,
            out_size=weight.out_features,
            element=weight.element,
            scale_dtype=weight.scales.dtype,
            group_size=weight.group_size,
            rounding=weight.input_rounding,
            has_zeros=weight.zeros is not None,
            has_output_scales=weight.output_scales is not None,
            has_bias=bias is not None,
        )

    @property
    def input_group(self) -> int:
        """Inputs of a row with one scale; 0 where they have none."""
        return 0 if self.rounding is None else self.rounding.group_size or self.in_size

    @property
    def input_format(self) -> InputElement:
        """The type of inputs where codes are multiplied; e4m3 holds all floats of 4 and 6 bits too."""
        is_e2m1 = self.rounding is not None and self.rounding.element == InputElement.E2M1
        return InputElement.E2M1 if is_e2m1 and self.element == Element.E2M1 else InputElement.E4M3

    def inner(self, most: int) -> int:
        """The largest power of two, at most `most`, that divides groups where a row has several."""
        groups = [size for size in (self.group_size, self.input_group) if 0 < size < self.in_size]
        return min([most, *(size & -size for size in groups)])


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRow:
    """A way to multiply, the devices that have it, and the layers that it is for."""

    path: ProductPath
    archs: range
    """Compute capabilities, times ten; 0 is the interpreter."""
    takes: Callable[[QuantizedLayer], bool]
    reason: str


def _has_integers(layer: QuantizedLayer) -> bool:
    rounding = layer.rounding
    return (
        rounding is not None
        and (rounding.element, rounding.zero_point) == (InputElement.INT8, 0)
        and (rounding.is_symmetric or rounding.scale is not None)
        and (
            layer.element in (Element.INT4, Element.UINT4)
            or (layer.element, layer.has_zeros) == (Element.INT8, False)
        )
        and layer.inner(128) >= MIN_INNER[1]
    )


def _has_floats(layer: QuantizedLayer) -> bool:
    rounding = layer.rounding
    return (
        (layer.element, layer.has_zeros) == (Element.E4M3, False)
        and rounding is not None
        and rounding.element != InputElement.INT8
        and layer.inner(128) >= MIN_INNER[1]
    )


def _has_scaled_groups(layer: QuantizedLayer) -> bool:
    """MX formats, whose weight and inputs have a power of two for each 32 inputs, and NVFP4."""
    rounding = layer.rounding
    if rounding is None or layer.has_zeros or rounding.scale is not None:
        return False
    groups = (layer.scale_dtype, layer.group_size, rounding.scale_kind, rounding.group_size)
    if groups == (torch.float8_e8m0fnu, 32, ScaleKind.E8M0, 32):
        return layer.element in (Element.E2M1, Element.E4M3) and rounding.element != InputElement.INT8
    is_nvfp4 = groups == (torch.float8_e4m3fn, 16, ScaleKind.E4M3, 16)
    return is_nvfp4 and (layer.element, rounding.element) == (Element.E2M1, InputElement.E2M1)


def _has_scaled_groups_of_one_type(layer: QuantizedLayer) -> bool:
    return _has_scaled_groups(layer) and layer.input_format.value == layer.element.value


PATHS: Final = (
    PathRow(
        path=ProductPath.SCALED,
        archs=range(100, 110),
        takes=_has_scaled_groups,
        reason="tcgen05.mma has block scales, for e4m3 with e2m1 too",
    ),
    PathRow(
        path=ProductPath.SCALED,
        archs=range(120, 130),
        takes=_has_scaled_groups_of_one_type,
        reason="mma.sync has block scales; Triton 3.7 makes bfloat16 of two types",
    ),
    PathRow(
        path=ProductPath.FP8,
        archs=range(89, _NEWEST),
        takes=_has_floats,
        reason="matrix units multiply e4m3; below 8.9 Triton has no such type",
    ),
    PathRow(
        path=ProductPath.INT8,
        archs=range(_NEWEST),
        takes=_has_integers,
        reason="every device multiplies 8-bit integers, and their sums are exact",
    ),
    PathRow(
        path=ProductPath.DECODED,
        archs=range(_NEWEST),
        takes=lambda layer: True,
        reason="codes of few bits are exact in 16 bits, but nf4's and fp4's",
    ),
)
"""Ways to multiply; a layer gets the first that its device has and that takes it."""


def path_of(layer: QuantizedLayer, arch: int) -> ProductPath:
    """Return the way to multiply a layer on devices of compute capability `arch / 10`; 0 interprets."""
    return next(row.path for row in PATHS if arch in row.archs and row.takes(layer))
