"""The quantized layers of one checkpoint: the tensors of which they consist, and checks of these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.quantization import kv_scales
from baton_engine.checkpoint.quantization.layer_format import (
    FLOATS,
    FUSED_CODES,
    CheckpointQuantization,
    LayerFormat,
    StoredTensor,
    is_fused,
    tensor_name,
)
from baton_engine.checkpoint.weight_files import TensorEntry
from baton_kernels.interface.quantized import QuantizedWeight

_E4M3_NAN: Final = 0x7F


class QuantizedLayers:
    """The layers that a quantization describes, in weight files with these tensors.

    Raises:
        InvalidModelError: a tensor of a layer is missing, unknown, or of another dtype or shape.
    """

    def __init__(self, quantization: CheckpointQuantization, entries: Mapping[str, TensorEntry]) -> None:
        self._quantization = quantization
        self._entries = entries
        self._parts: dict[str, list[str]] = {}
        for name in entries:
            layer, part = self._split(name)
            self._parts.setdefault(layer, []).append(part)
        for layer in self._parts:
            self._check(layer)

    def format_of(self, layer: str) -> LayerFormat | None:
        """Return how a layer is stored; None where it is not quantized.

        Packages leave layers as they are without naming them: those whose size their format cannot have,
        routers of experts, and experts that are fused in one tensor of the layer's name.
        """
        found = self._quantization.layer_format(layer)
        if found is None:
            return None
        stored = (tensor_name(layer, found.codes_name), f"{layer}.weight", layer)
        codes = next((self._entries[name] for name in stored if name in self._entries), None)
        return None if codes is not None and codes.dtype in FLOATS else found

    def tensors(
        self, layer: str, out_features: int, in_features: int, num_fused: int | None = None
    ) -> tuple[str, ...]:
        """Return the names of the tensors of a layer of this size, without the layer's name.

        `num_fused` is the number of layers that they hold, where these are fused.

        Raises:
            InvalidModelError: as the constructor.
        """
        stored = self._stored_tensors(layer, self._format(layer), (out_features, in_features), num_fused)
        return tuple(part for part, one in stored.items() if self._is_there(tensor_name(layer, part), one))

    def decode(
        self,
        layer: str,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        num_fused: int | None = None,
    ) -> QuantizedWeight:
        """Return a layer of its tensors; fused layers as one, with their outputs side by side.

        Raises:
            InvalidModelError: a number in them cannot be.
        """
        for part, tensor in tensors.items():
            if tensor.is_floating_point() and not _is_finite(tensor):
                name = tensor_name(layer, part)
                where = self._entries[name].path
                raise InvalidModelError(
                    f"{where}: tensor {name} holds NaN or an infinity; allowed: finite numbers"
                )
        if num_fused is not None:
            out_features *= num_fused
            tensors = {part: tensor.view(out_features, -1) for part, tensor in tensors.items()}
        try:
            weight = self._format(layer).decode(tensors, out_features, in_features)
        except (ValueError, InvalidModelError) as error:
            raise self._refusal(layer, error) from error
        if not weight.scales.float().any():
            raise InvalidModelError(f"layer {layer}: all scales are 0; allowed: scales of its weights")
        return weight

    def _split(self, name: str) -> tuple[str, str]:
        """Return the layer of a tensor, and the rest of its name; see `tensor_name`."""
        layer, _, part = name.rpartition("_")
        if f"{layer}{FUSED_CODES}" in self._entries:
            return layer, f"_{part}"
        layer, _, part = name.rpartition(".")
        return layer, part

    def _format(self, layer: str) -> LayerFormat:
        found = self.format_of(layer)
        if found is None:
            raise ValueError(f"layer {layer} is not quantized")
        return found

    def _check(self, layer: str) -> None:
        """Check the tensors of what may be a layer: an embedding and a norm are no layers, nor is a head that
        is stored as it was.
        """
        layer_format = self.format_of(layer)
        if layer_format is None:
            return
        name = tensor_name(layer, layer_format.codes_name)
        codes = self._entries.get(name)
        if codes is None:
            return
        num_fused, shape = _divide_shape(layer_format.codes_name, codes.shape)
        if len(shape) != 2:
            raise InvalidModelError(
                f"{codes.path}: tensor {name} has shape {list(codes.shape)}; allowed: two axes"
            )
        sizes = layer_format.sizes(shape)
        if sizes is None:
            return
        stored = self._stored_tensors(layer, layer_format, sizes, num_fused)
        for part, one in stored.items():
            self._is_there(tensor_name(layer, part), one)
        for part in self._parts[layer]:
            if part not in stored and part.removeprefix("_") not in ("bias", *kv_scales.PARTS):
                raise InvalidModelError(
                    f"{codes.path}: tensor {tensor_name(layer, part)} is unknown beside quantized weights; "
                    f"allowed: {', '.join(stored)}"
                )

    def _stored_tensors(
        self, layer: str, layer_format: LayerFormat, sizes: tuple[int, int], num_fused: int | None
    ) -> Mapping[str, StoredTensor]:
        try:
            stored = layer_format.tensors(*sizes)
        except InvalidModelError as error:
            raise self._refusal(layer, error) from error
        if num_fused is None:
            return stored
        return {
            part: one if one.shape is None else replace(one, shape=(num_fused, *one.shape))
            for part, one in stored.items()
        }

    def _refusal(self, layer: str, error: Exception) -> InvalidModelError:
        """Return an error of a layer's format with the names of the layer and of the file with its codes."""
        codes = self._entries.get(tensor_name(layer, self._format(layer).codes_name))
        where = "" if codes is None else f"{codes.path}: "
        return InvalidModelError(f"{where}layer {layer}: {error}")

    def _is_there(self, name: str, stored: StoredTensor) -> bool:
        """Say whether a tensor is there, after checking its dtype and shape."""
        entry = self._entries.get(name)
        if entry is None and stored.is_optional:
            return False
        if entry is None:
            raise InvalidModelError(f"tensor {name} is missing; allowed: weights that hold it")
        if entry.dtype not in stored.dtypes:
            allowed = ", ".join(stored.dtypes)
            raise InvalidModelError(
                f"{entry.path}: tensor {name} has dtype {entry.dtype}; allowed: {allowed}"
            )
        if stored.shape is not None and _without_ones(entry.shape) != _without_ones(stored.shape):
            raise InvalidModelError(
                f"{entry.path}: tensor {name} has shape {list(entry.shape)}; allowed: {list(stored.shape)}"
            )
        return True


def _divide_shape(codes_name: str, shape: tuple[int, ...]) -> tuple[int | None, tuple[int, ...]]:
    """Return the number of fused layers, None without such, and the shape of the codes of one."""
    if is_fused(codes_name) and len(shape) > 2:
        return shape[0], (shape[1], math.prod(shape[2:]))
    return None, shape


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype == torch.float8_e4m3fn:
        return not bool(((tensor.view(torch.uint8) & _E4M3_NAN) == _E4M3_NAN).any())
    return bool(tensor.float().isfinite().all())
