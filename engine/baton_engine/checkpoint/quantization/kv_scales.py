"""Scales of a KV cache of 8-bit floats, under the names that checkpoints have for them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Final, Protocol

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.model_config import ModelConfig

_MODULES: Final = ("model.layers.{}.self_attn",)
"""Names of the modules of attention, `{}` for the layer's number, where a configuration says no others."""
_K_NAMES: Final = (
    *("k_scale", "attn.k_scale", "k_proj.k_scale"),
    *("k_proj.output_scale", "qkv_proj.k_scale", "k_proj.kv_scale"),
)
_V_NAMES: Final = (
    *("v_scale", "attn.v_scale", "v_proj.v_scale"),
    *("v_proj.output_scale", "qkv_proj.v_scale", "v_proj.kv_scale"),
)
_BOTH_NAMES: Final = ("kv_scale", "attn.kv_scale")
"""Names of one scale of keys and values, in older checkpoints."""
PARTS: Final = frozenset(name.rpartition(".")[2] for name in (*_K_NAMES, *_V_NAMES, *_BOTH_NAMES))
"""The last parts of all these names."""
logger = logging.getLogger(__name__)


class StoredNumbers(Protocol):
    """The tensors of a checkpoint that hold one number."""

    def __contains__(self, name: str) -> bool: ...

    def load_number(self, name: str) -> float: ...


def read_kv_scales(
    weights: StoredNumbers, num_layers: int, config: ModelConfig
) -> tuple[tuple[float, float], ...]:
    """Return each layer's scales of keys and values; a line in the log says where they are 1.

    Empty where the checkpoint has none.

    Raises:
        InvalidModelError: one is not a number above 0.
    """
    modules = getattr(config, "attention_modules", _MODULES)
    places = [[module.format(layer) for module in modules] for layer in range(num_layers)]
    scales = [
        (_read(weights, place, (*_K_NAMES, *_BOTH_NAMES)), _read(weights, place, (*_V_NAMES, *_BOTH_NAMES)))
        for place in places
    ]
    missing = sum(None in pair for pair in scales)
    if missing:
        logger.warning("KV scales are 1.0 in %d of %d layers: the checkpoint has none", missing, num_layers)
    if missing == num_layers:
        return ()
    return tuple((1.0 if k is None else k, 1.0 if v is None else v) for k, v in scales)


def _read(weights: StoredNumbers, modules: Sequence[str], names: Sequence[str]) -> float | None:
    for full in (f"{module}.{name}" for module in modules for name in names):
        if full in weights:
            value = weights.load_number(full)
            if not (math.isfinite(value) and value > 0):
                raise InvalidModelError(f"tensor {full} is {value}; allowed: a number above 0")
            return value
    return None
