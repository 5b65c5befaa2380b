"""Ways of storing quantized weights that several formats have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.quantization.layer_format import FLOATS, StoredTensor
from baton_engine.checkpoint.quantization.stored_inputs import (
    AS_THEY_ARE,
    LEAST_ZERO,
    MOST_ZERO,
    StoredInputs,
)
from baton_engine.checkpoint.quantization.unpacking import (
    pack_nibbles,
    require_divisible,
    unpack_six_bits,
)
from baton_kernels.interface.quantized import Element, InputElement, QuantizedWeight
from baton_kernels.reference.quantized_product import MINI_FLOATS

SCALES: Final = (*FLOATS, "F8_E8M0")
_ZEROS: Final = ("I8", "U8", "I32", "I64", *FLOATS)
_EXPONENTS: Final = ("U8", "F8_E8M0")
_MX_GROUP: Final = 32
_NVFP4_GROUP: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The outputs and inputs of a weight with one scale; None is all of them."""

    rows: int | None = None
    columns: int | None = None

    def shape(self, out_features: int, in_features: int) -> tuple[int, int]:
        """Return the shape of the scales of a weight."""
        rows, columns = self.rows or out_features, self.columns or in_features
        return -(-out_features // rows), -(-in_features // columns)

    def group_size(self, in_features: int) -> int:
        return self.columns or in_features

    def per_output(self, values: Tensor, out_features: int, in_features: int) -> Tensor:
        """Return numbers of blocks, in whatever shape, as `[out_features, num_groups]`."""
        blocks = values.reshape(self.shape(out_features, in_features))
        rows = min(self.rows or out_features, out_features)
        if rows == 1:
            return blocks.contiguous()
        return blocks.repeat_interleave(rows, dim=0)[:out_features].contiguous()


PER_TENSOR: Final = Blocks()
PER_CHANNEL: Final = Blocks(rows=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteCodes:
    """A code in each byte of `weight`: 8-bit floats, integers of 8 bits, or of 4 that are stored so."""

    element: Element
    """E4M3, INT8 or INT4."""
    blocks: Blocks
    scale: str = "weight_scale"
    has_wide_scales: bool = False
    """Scales become float32, whatever they are stored as."""
    zero_point: str = ""
    """Name of the tensor with zero points; it may be missing."""
    inputs: StoredInputs = AS_THEY_ARE
    codes_name: str = "weight"

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[0], codes_shape[1]

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        shape = self.blocks.shape(out_features, in_features)
        dtype = "F8_E4M3" if self.element == Element.E4M3 else "I8"
        stored = {
            self.codes_name: StoredTensor(dtypes=(dtype,), shape=(out_features, in_features)),
            self.scale: StoredTensor(dtypes=SCALES, shape=shape),
        }
        if self.zero_point:
            stored[self.zero_point] = StoredTensor(dtypes=_ZEROS, shape=shape, is_optional=True)
        return {**stored, **self.inputs.tensors()}

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        codes = tensors[self.codes_name]
        if self.element == Element.E4M3:
            codes = codes.view(torch.uint8)
        elif self.element == Element.INT4:
            require_divisible("in_features", in_features, 2)
            if codes.amin() < -8 or codes.amax() > 7:
                raise InvalidModelError(f"{self.codes_name} holds codes beyond 4 bits; allowed: -8 to 7")
            codes = pack_nibbles((codes + 8).to(torch.uint8))
        scales = tensors[self.scale]
        if self.has_wide_scales or scales.dtype == torch.float8_e8m0fnu:
            scales = scales.float()
        spread = self.blocks.per_output(scales, out_features, in_features)
        return QuantizedWeight(
            element=self.element,
            codes=codes,
            scales=spread,
            group_size=self.blocks.group_size(in_features),
            zeros=self._zeros(tensors, out_features, in_features),
            input_rounding=self.inputs.read(tensors),
        )

    def _zeros(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> Tensor | None:
        zeros = tensors.get(self.zero_point)
        if zeros is None or not zeros.any():
            return None
        if self.element != Element.INT8:
            raise InvalidModelError(f"{self.zero_point} is not 0; allowed: 0, with {self.element.value}")
        whole = zeros.double()
        if (whole != whole.round()).any() or whole.min() < LEAST_ZERO or whole.max() > MOST_ZERO:
            raise InvalidModelError(
                f"{self.zero_point} holds numbers from {whole.min():g} to {whole.max():g}; "
                f"allowed: integers from {LEAST_ZERO} to {MOST_ZERO}"
            )
        return self.blocks.per_output(zeros.to(torch.int16), out_features, in_features)


@dataclass(frozen=True, slots=True, kw_only=True)
class MXFloats:
    """Floats of 4, 6 or 8 bits in groups of 32 inputs with a power of two as their scale."""

    element: InputElement
    codes_name: str
    scale: str = "weight_scale"
    inputs: StoredInputs = AS_THEY_ARE

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[0], codes_shape[1] * 8 // self._bits

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        require_divisible("in_features", in_features, _MX_GROUP)
        dtype = "F8_E4M3" if self.element == InputElement.E4M3 else "U8"
        return {
            self.codes_name: StoredTensor(
                dtypes=(dtype,), shape=(out_features, in_features * self._bits // 8)
            ),
            self.scale: StoredTensor(dtypes=_EXPONENTS, shape=(out_features, in_features // _MX_GROUP)),
            **self.inputs.tensors(),
        }

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        codes = tensors[self.codes_name]
        element = Element.E2M1
        if self._bits == 6:
            codes, element = _six_bit_codes(self.element, codes), Element.E4M3
        elif self._bits == 8:
            codes, element = codes.view(torch.uint8), Element.E4M3
        return QuantizedWeight(
            element=element,
            codes=codes,
            scales=exponents(self.scale, tensors[self.scale]).view(out_features, -1),
            group_size=_MX_GROUP,
            input_rounding=self.inputs.read(tensors),
        )

    @property
    def _bits(self) -> int:
        return _BITS[self.element]


_BITS: Final = {InputElement.E2M1: 4, InputElement.E2M3: 6, InputElement.E3M2: 6, InputElement.E4M3: 8}


def exponents(name: str, stored: Tensor) -> Tensor:
    """Return powers of two that are stored as bytes of exponents.

    Raises:
        InvalidModelError: one is 255, which is no number.
    """
    if (stored.view(torch.uint8) == 255).any():
        raise InvalidModelError(f"{name} holds the exponent 255; allowed: 0 to 254")
    return stored.view(torch.float8_e8m0fnu)


def _six_bit_codes(element: InputElement, packed: Tensor) -> Tensor:
    """Return codes of E4M3 with the values of floats of 6 bits, which it holds exactly."""
    mantissa_bits = MINI_FLOATS[element].mantissa_bits
    bias = 1 if element == InputElement.E2M3 else 3
    codes = torch.arange(64)
    exponent, mantissa = (codes & 31) >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    values = torch.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
    table = torch.where(codes >= 32, -values, values).to(torch.float8_e4m3fn).view(torch.uint8)
    return table[unpack_six_bits(packed).long()]


@dataclass(frozen=True, slots=True, kw_only=True)
class NVFP4:
    """4-bit floats in groups of 16 inputs with scales of 8-bit floats, and one scale for all of these."""

    codes_name: str
    global_scale: str
    is_divisor: bool
    """Scales are divided by the global one, instead of multiplied."""
    inputs: StoredInputs = AS_THEY_ARE
    scale: str = "weight_scale"

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int]:
        return codes_shape[0], codes_shape[1] * 2

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        require_divisible("in_features", in_features, _NVFP4_GROUP)
        groups = in_features // _NVFP4_GROUP
        return {
            self.codes_name: StoredTensor(dtypes=("U8",), shape=(out_features, in_features // 2)),
            self.scale: StoredTensor(dtypes=("F8_E4M3",), shape=(out_features, groups)),
            self.global_scale: StoredTensor(dtypes=FLOATS, shape=()),
            **self.inputs.tensors(),
        }

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        factor = tensors[self.global_scale].float().view(1)
        if factor.item() <= 0:
            raise InvalidModelError(f"{self.global_scale} is {factor.item()}; allowed: a number above 0")
        return QuantizedWeight(
            element=Element.E2M1,
            codes=tensors[self.codes_name],
            scales=tensors[self.scale].view(out_features, -1),
            group_size=_NVFP4_GROUP,
            output_scales=(1 / factor if self.is_divisor else factor).repeat(out_features),
            input_rounding=self.inputs.read(tensors),
        )
