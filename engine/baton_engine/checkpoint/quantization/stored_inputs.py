"""The rounding of a layer's inputs, as a checkpoint stores it beside the weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.quantization.layer_format import FLOATS, StoredTensor
from baton_kernels.interface.quantized import InputRounding

_INTEGERS = ("I8", "U8", "I32", "I64", *FLOATS)
LEAST_ZERO: Final = -128
MOST_ZERO: Final = 255
"""Zero points of signed codes of 8 bits, or of unsigned ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredInputs:
    """How inputs are rounded, and the tensors that hold numbers of it."""

    rounding: InputRounding | None = None
    """Without the numbers of tensors; None leaves inputs as they are."""
    scale: str = ""
    """Name of the tensor with the one scale; empty where scales follow from the inputs."""
    zero_point: str = ""
    """Name of the tensor with the code of zero; it may be missing."""
    global_scale: str = ""
    """Name of the tensor with the factor of scales of E4M3."""
    is_reciprocal: bool = False
    """The global scale is stored as its reciprocal."""

    def tensors(self) -> dict[str, StoredTensor]:
        """Return the tensors by name."""
        number = StoredTensor(dtypes=FLOATS, shape=())
        stored = {name: number for name in (self.scale, self.global_scale) if name}
        if self.zero_point:
            stored[self.zero_point] = StoredTensor(dtypes=_INTEGERS, shape=(), is_optional=True)
        return stored

    def read(self, tensors: Mapping[str, Tensor]) -> InputRounding | None:
        """Return the rounding with the numbers of these tensors.

        Raises:
            InvalidModelError: a scale is not above 0, or a zero point is no code of 8 bits.
        """
        if self.rounding is None:
            return None
        numbers: dict[str, float | int] = {}
        if self.scale:
            numbers["scale"] = _positive(self.scale, tensors)
        if self.zero_point in tensors:
            numbers["zero_point"] = _zero_point(self.zero_point, tensors)
        if self.global_scale:
            factor = _positive(self.global_scale, tensors)
            numbers["global_scale"] = 1 / factor if self.is_reciprocal else factor
        return replace(self.rounding, **numbers)  # type: ignore[arg-type]


def _zero_point(name: str, tensors: Mapping[str, Tensor]) -> int:
    value = float(tensors[name])
    if not LEAST_ZERO <= value <= MOST_ZERO or not value.is_integer():
        raise InvalidModelError(f"{name} is {value:g}; allowed: integers from {LEAST_ZERO} to {MOST_ZERO}")
    return int(value)


def _positive(name: str, tensors: Mapping[str, Tensor]) -> float:
    value = float(tensors[name])
    if value <= 0:
        raise InvalidModelError(f"{name} is {value}; allowed: a number above 0")
    return value


AS_THEY_ARE = StoredInputs()
"""Inputs are not rounded."""
