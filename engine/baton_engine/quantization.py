"""Quantization of linear layers, where their weights are not kept as the file has them."""

from __future__ import annotations

from enum import StrEnum

import torch

from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.models.registry import why_not_dense


class Quantization(StrEnum):
    """The kinds of quantization; the values are those of the flag."""

    INT8 = "int8"
    """Codes of 8 bits: weights with a scale for each output, activations with one for each token."""


def require_quantizable(quantization: Quantization | None, config: ModelConfig, device: torch.device) -> None:
    """Check that the layers of this model can be quantized on this device.

    Raises:
        InvalidConfigError: they cannot.
    """
    if quantization is None:
        return
    where = "a GPU" if device.type != "cpu" else why_not_dense(config)
    if where:
        raise InvalidConfigError(f"quantization is {quantization.value!r}; allowed with {where}: None")
