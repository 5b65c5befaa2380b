"""The quantized layers of one checkpoint: the tensors of which they consist, and checks of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.quantization import kv_scales
from baton_engine.checkpoint.quantization.layer_format import (
    FLOATS,
    CheckpointQuantization,
    LayerFormat,
    StoredTensor,
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
            layer, _, part = name.rpartition(".")
            self._parts.setdefault(layer, []).append(part)
        for layer in self._parts:
            self._check(layer)

    def format_of(self, layer: str) -> LayerFormat | None:
        """Return how a layer is stored; None where it is not quantized.

        Packages leave layers as they are whose size their format cannot have, without naming them.
        """
        found = self._quantization.layer_format(layer)
        if found is None:
            return None
        codes = self._entries.get(f"{layer}.{found.codes_name}")
        return None if codes is not None and codes.dtype in FLOATS else found

    def tensors(self, layer: str, out_features: int, in_features: int) -> tuple[str, ...]:
        """Return the names of the tensors of a layer of this size, without the layer's name.

        Raises:
            InvalidModelError: as the constructor.
        """
        stored = self._format(layer).tensors(out_features, in_features)
        return tuple(part for part, one in stored.items() if self._is_there(f"{layer}.{part}", one))

    def decode(
        self, layer: str, tensors: Mapping[str, Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        """Return a layer of its tensors.

        Raises:
            InvalidModelError: a number in them cannot be.
        """
        for part, tensor in tensors.items():
            if tensor.is_floating_point() and not _is_finite(tensor):
                name = f"{layer}.{part}"
                where = self._entries[name].path
                raise InvalidModelError(
                    f"{where}: tensor {name} holds NaN or an infinity; allowed: finite numbers"
                )
        try:
            weight = self._format(layer).decode(tensors, out_features, in_features)
        except (ValueError, InvalidModelError) as error:
            raise InvalidModelError(f"layer {layer}: {error}") from error
        if not weight.scales.float().any():
            raise InvalidModelError(f"layer {layer}: all scales are 0; allowed: scales of its weights")
        return weight

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
        codes = self._entries.get(f"{layer}.{layer_format.codes_name}")
        if codes is None:
            return
        if len(codes.shape) != 2:
            raise InvalidModelError(
                f"{codes.path}: tensor {layer}.{layer_format.codes_name} has shape {list(codes.shape)}; "
                "allowed: two axes"
            )
        sizes = layer_format.sizes(codes.shape)
        if sizes is None:
            return
        stored = layer_format.tensors(*sizes)
        for part, one in stored.items():
            self._is_there(f"{layer}.{part}", one)
        for part in self._parts[layer]:
            if part not in stored and part != "bias" and part not in kv_scales.PARTS:
                raise InvalidModelError(
                    f"{codes.path}: tensor {layer}.{part} is unknown beside quantized weights; allowed: "
                    f"{', '.join(stored)}"
                )

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


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype == torch.float8_e4m3fn:
        return not bool(((tensor.view(torch.uint8) & _E4M3_NAN) == _E4M3_NAN).any())
    return bool(tensor.float().isfinite().all())
