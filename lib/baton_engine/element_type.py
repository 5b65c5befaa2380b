"""Which element type a model is computed in."""

from __future__ import annotations

import logging
from typing import Final

import torch

from baton_core.errors import InvalidConfigError

logger = logging.getLogger(__name__)

_COMPUTED: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ALLOWED: Final = ("auto", *_COMPUTED)


def resolve_dtype(requested: str, checkpoint: str, device: torch.device) -> torch.dtype:
    """Return the element type for `requested` (one of ALLOWED) and that of the checkpoint.

    "auto" is the checkpoint's, bfloat16 for float16, and float32 instead of bfloat16 on a CPU that only
    emulates it.

    Raises:
        InvalidConfigError: `requested` is none of ALLOWED.
    """
    if requested not in ALLOWED:
        raise InvalidConfigError(f"dtype is {requested!r}; allowed: {', '.join(ALLOWED)}")
    if requested != "auto":
        return _COMPUTED[requested]
    chosen = "float32" if checkpoint == "float32" else "bfloat16"
    if chosen == "bfloat16" and device.type == "cpu" and not has_native_bfloat16():
        chosen = "float32"
    if chosen != checkpoint:
        logger.info("weights are %s; computing in %s on this %s", checkpoint, chosen, device.type)
    return _COMPUTED[chosen]


def has_native_bfloat16() -> bool:
    """Say whether this CPU multiplies bfloat16 in hardware."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
