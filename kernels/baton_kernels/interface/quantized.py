"""The one form in which kernels take the weight of a quantized linear layer, whatever file it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

import torch
from torch import Tensor


class Element(StrEnum):
    """The type of the codes of a weight."""

    INT8 = "int8"
    """A code is its value, -128 to 127."""
    INT4 = "int4"
    """Codes 0 to 15 with the values -8 to 7."""
    UINT4 = "uint4"
    """Codes 0 to 15 are their values, less a zero point."""
    E2M1 = "e2m1"
    """The 4-bit float of MXFP4 and NVFP4."""
    NF4 = "nf4"
    """The 16 quantiles of a normal distribution, from -1 to 1."""
    FP4 = "fp4"
    """The 4-bit float of bitsandbytes, from -1 to 1."""
    E4M3 = "e4m3"
    """The 8-bit float without infinities, at most 448."""

    @property
    def bits(self) -> int:
        return 8 if self in (Element.INT8, Element.E4M3) else 4


_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NF4: Final = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4: Final = (
    *(0.0, 0.0052083334885537624, 0.6666666865348816, 1.0),
    *(0.3333333432674408, 0.5, 0.1666666716337204, 0.25),
)
TABLES: Final[dict[Element, tuple[float, ...]]] = {
    Element.INT4: tuple(float(code - 8) for code in range(16)),
    Element.UINT4: tuple(map(float, range(16))),
    Element.E2M1: (*_E2M1, *(-value for value in _E2M1)),
    Element.NF4: _NF4,
    Element.FP4: (*_FP4, 0.0, *(-value for value in _FP4[1:])),
}
"""The value of each 4-bit code. Source of NF4 and FP4: the `quant_map` that bitsandbytes writes."""
SCALE_DTYPES: Final = (
    *(torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e8m0fnu, torch.float8_e4m3fn),
)


class InputElement(StrEnum):
    """The type to which inputs of a layer are rounded."""

    INT8 = "int8"
    E4M3 = "e4m3"
    E2M1 = "e2m1"
    E2M3 = "e2m3"
    E3M2 = "e3m2"


class ScaleKind(StrEnum):
    """How the scales of rounded inputs are themselves rounded."""

    FLOAT32 = "float32"
    E8M0 = "e8m0"
    """A power of two."""
    E4M3 = "e4m3"
    """A float of 8 bits, times `InputRounding.global_scale`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRounding:
    """The rounding of a layer's inputs that its checkpoint asks for."""

    element: InputElement
    group_size: int | None = None
    """Neighbouring inputs of a row with one scale; None is the whole row."""
    scale: float | None = None
    """The one scale of all inputs; None takes each scale from the largest magnitude below it."""
    zero_point: int = 0
    """With `scale` and INT8: the code of zero."""
    is_symmetric: bool = True
    """False gives each row of INT8 codes a zero point of its own."""
    scale_kind: ScaleKind = ScaleKind.FLOAT32
    global_scale: float = 1.0
    """With scales of E4M3: scales are divided by it after they are rounded."""
    scale_mantissa_bits: int | None = None
    """With scales of E8M0: bits of the mantissa to which the largest magnitude is rounded before its exponent
    is taken; None is as many as the element has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """A weight `[out_features, in_features]` as codes and scales.

    Its value at `[n, k]`, with `g = k // group_size`, is
    `(element(codes[n, k]) - zeros[n, g]) * scales[n, g] * output_scales[n]`; what is None is left out. With
    `input_order`, column k of the codes belongs to input `input_order[k]`.

    Raises:
        ValueError: shapes or types do not fit each other.
    """

    element: Element
    codes: Tensor
    """`[out_features, in_features]`, int8 for INT8 and uint8 for E4M3; for elements of 4 bits
    `[out_features, in_features / 2]` uint8, the even input in the lower bits."""
    scales: Tensor
    """`[out_features, ceil(in_features / group_size)]`, one of `SCALE_DTYPES`."""
    group_size: int
    """Neighbouring inputs with one scale; `in_features` where an output has one."""
    zeros: Tensor | None = None
    """int16, shaped like `scales`, in units of codes; for UINT4 and INT8."""
    output_scales: Tensor | None = None
    """`[out_features]` float32."""
    input_order: Tensor | None = None
    """`[in_features]` int64, a permutation."""
    input_rounding: InputRounding | None = None
    """None leaves inputs as they are."""

    def __post_init__(self) -> None:
        num_groups = -(-self.in_features // self.group_size)
        if self.scales.shape != (self.out_features, num_groups) or self.scales.dtype not in SCALE_DTYPES:
            raise ValueError(
                f"scales are {list(self.scales.shape)} {self.scales.dtype}; allowed: "
                f"{[self.out_features, num_groups]} of {SCALE_DTYPES}"
            )
        if self.zeros is not None and self.zeros.shape != self.scales.shape:
            raise ValueError(f"zeros are {list(self.zeros.shape)}; allowed: {list(self.scales.shape)}")

    @property
    def out_features(self) -> int:
        return len(self.codes)

    @property
    def in_features(self) -> int:
        return self.codes.shape[1] * 8 // self.element.bits

    @property
    def num_bytes(self) -> int:
        """Size of all its tensors."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def to(self, device: torch.device) -> QuantizedWeight:
        """Return it on a device."""
        moved: dict[str, Any] = {name: tensor.to(device) for name, tensor in self._tensors().items()}
        return replace(self, **moved)

    def outputs(self, rows: slice) -> QuantizedWeight:
        """Return the layer of some of its outputs, in the same memory."""
        return replace(
            self,
            codes=self.codes[rows],
            scales=self.scales[rows],
            zeros=None if self.zeros is None else self.zeros[rows],
            output_scales=None if self.output_scales is None else self.output_scales[rows],
        )

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def can_stack(weights: Sequence[QuantizedWeight]) -> bool:
    """Say whether layers with the same inputs can be one layer with their outputs side by side.

    They can if they have the same element, groups, type of scales, order and rounding of inputs.
    """
    first = weights[0]
    return all(
        (one.element, one.group_size, one.in_features, one.scales.dtype, one.input_rounding)
        == (first.element, first.group_size, first.in_features, first.scales.dtype, first.input_rounding)
        and _is_equal(one.input_order, first.input_order)
        for one in weights
    )


def _is_equal(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)


def stack(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Return the layer of all outputs side by side of layers that `can_stack`; each value stays as it is."""
    first = weights[0]
    has_zeros = any(one.zeros is not None for one in weights)
    has_output_scales = any(one.output_scales is not None for one in weights)
    zeros = [_or_fill(one.zeros, one.scales, 0, torch.int16) for one in weights] if has_zeros else None
    factors = [_or_fill(one.output_scales, one.codes[:, 0], 1, torch.float32) for one in weights]
    return replace(
        first,
        codes=torch.cat([one.codes for one in weights]),
        scales=concatenate([one.scales for one in weights]),
        zeros=None if zeros is None else torch.cat(zeros),
        output_scales=torch.cat(factors) if has_output_scales else None,
    )


def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate along an axis; torch cannot with every float of 8 bits."""
    if tensors[0].itemsize > 1:
        return torch.cat(list(tensors), dim)
    return torch.cat([tensor.view(torch.uint8) for tensor in tensors], dim).view(tensors[0].dtype)


def _or_fill(tensor: Tensor | None, like: Tensor, value: int, dtype: torch.dtype) -> Tensor:
    if tensor is not None:
        return tensor
    return torch.full(like.shape, value, dtype=dtype, device=like.device)
