"""The interface of the ways in which checkpoints store quantized linear layers.

A way of storing names the tensors of a layer, and turns them into the one form that kernels take. It reads
no files itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from baton_kernels.interface.quantized import QuantizedWeight

FLOATS = ("F32", "BF16", "F16")
"""Dtypes of tensors that are not quantized, by the names of safetensors."""
FUSED_CODES = "_blocks"
"""`LayerFormat.codes_name` where several layers are fused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a quantized layer, as the file must hold it."""

    dtypes: tuple[str, ...]
    """Allowed dtypes, by the names of safetensors."""
    shape: tuple[int, ...] | None
    """Axes of length 1 may be there or not; None is any shape."""
    is_optional: bool = False


def tensor_name(layer: str, part: str) -> str:
    """Return the whole name of a tensor of a layer."""
    return f"{layer}{part}" if is_fused(part) else f"{layer}.{part}"


def is_fused(part: str) -> bool:
    """Say whether tensors with this name hold several layers of one size, along an axis before all others.

    Such names begin with `_`, but not with `_weight_`, and continue the name of the layers, without a dot.
    """
    return part.startswith("_") and not part.startswith("_weight_")


class LayerFormat(Protocol):
    """How the linear layers of one scheme are stored; their names end in those of their tensors."""

    @property
    def codes_name(self) -> str:
        """Name of the tensor that holds the codes: `weight`, `qweight` or another; see `is_fused`."""
        ...

    def sizes(self, codes_shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Return `(out_features, in_features)` of a layer by the shape of its codes, if that says it."""
        ...

    def tensors(self, out_features: int, in_features: int) -> Mapping[str, StoredTensor]:
        """Return the tensors of a layer by name; the bias is not among them.

        Raises:
            InvalidModelError: a layer of this size cannot be stored so; the message says why.
        """
        ...

    def decode(self, tensors: Mapping[str, Tensor], out_features: int, in_features: int) -> QuantizedWeight:
        """Return the layer of its tensors, each shaped as `tensors` says; the optional ones may be missing.

        Raises:
            InvalidModelError: the numbers in a tensor cannot be; the message begins with the tensor's name.
        """
        ...


class CheckpointQuantization(Protocol):
    """The quantization that a checkpoint's config.json describes."""

    @property
    def method(self) -> str:
        """Its name, `quant_method` in config.json."""
        ...

    def layer_format(self, name: str) -> LayerFormat | None:
        """Return how the linear layer of that name is stored; None where it is not quantized.

        `name` is that of the checkpoint, such as `model.layers.0.self_attn.q_proj`.

        Raises:
            InvalidModelError: it is stored in a way that cannot be read; the message says in which.
        """
        ...
