"""Finds out how a checkpoint is quantized, by `quant_method` in its config.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.fp8 import read_fp8
from baton_engine.checkpoint.quantization.layer_format import CheckpointQuantization
from baton_engine.checkpoint.quantization.methods import METHODS

_READERS: Final[dict[str, Callable[[ConfigFields], CheckpointQuantization]]] = {"fp8": read_fp8}
_SECTIONS: Final = {"quantization_config": "", "compression_config": "compressed-tensors"}
"""Where a config.json says how its checkpoint is quantized, each with the method that goes without saying."""


def read_quantization(fields: ConfigFields) -> CheckpointQuantization | None:
    """Read the quantization of a config.json; None where the checkpoint has none.

    Raises:
        InvalidModelError: its method is unknown, or its description cannot be followed.
    """
    for key, default in _SECTIONS.items():
        if (section := fields.section(key)) is not None:
            section = section.with_default("quant_method", default)
            method = section.raw("quant_method")
            if method not in METHODS:
                allowed = f"{', '.join(METHODS)} (other formats of stored weights cannot be read yet)"
                raise section.refuse("quant_method", method, allowed)
            return _READERS[method](section)
    return None
