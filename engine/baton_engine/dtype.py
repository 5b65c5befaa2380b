"""The dtype that a model is computed in."""

from __future__ import annotations

import logging
from typing import Final

import torch

from baton_core.errors import InvalidConfigError
from baton_kernels.cpu.onednn import multiplies_bfloat16

logger = logging.getLogger(__name__)

_TYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ALIASES: Final = {"float": "float32", "half": "float16"}
ALLOWED: Final = ("auto", *_TYPES, *_ALIASES)
BFLOAT16_CAPABILITY: Final = (8, 0)
"""The first compute capability that multiplies bfloat16."""


def resolve_dtype(requested: str, checkpoint: str, device: torch.device) -> torch.dtype:
    """Return the dtype for `requested` (one of ALLOWED) and that of the checkpoint.

    "auto" is the checkpoint's; on a CPU, whose kernels have no float16, bfloat16 for it, and float32 instead
    of bfloat16 where that is only emulated. A log line says so.

    Raises:
        InvalidConfigError: `requested` is none of ALLOWED, or the device does not compute in it.
    """
    if requested not in ALLOWED:
        raise InvalidConfigError(f"dtype is {requested!r}; allowed: {', '.join(ALLOWED)}")
    name = _ALIASES.get(requested, requested)
    chosen = _automatic(checkpoint, device) if name == "auto" else name
    _require_on_device(chosen, requested, device)
    if chosen != checkpoint and name == "auto":
        logger.warning(
            "weights are %s; computing in %s, which this CPU's kernels have; dtype=%s is slower here",
            *(checkpoint, chosen, checkpoint),
        )
    elif (chosen, device.type) == ("float16", "cpu"):
        logger.warning("float16 on a CPU is computed by torch, slower than other dtypes by Baton's kernels")
    return _TYPES[chosen]


def _automatic(checkpoint: str, device: torch.device) -> str:
    if checkpoint == "float32" or device.type != "cpu":
        return checkpoint
    return "bfloat16" if multiplies_bfloat16() else "float32"


def _require_on_device(chosen: str, requested: str, device: torch.device) -> None:
    if device.type == "cuda" and chosen == "bfloat16":
        capability = torch.cuda.get_device_capability(device)
        if capability < BFLOAT16_CAPABILITY:
            shown = ".".join(map(str, capability))
            raise InvalidConfigError(
                f"dtype is {requested!r}, which is bfloat16 for this model; allowed on a GPU of compute "
                f"capability {shown}: float16, float32"
            )
