"""The dtype that a model is computed in."""

from __future__ import annotations

import logging
from typing import Final

import torch

from baton_core.errors import InvalidConfigError
from baton_kernels.cpu.selection import is_fast_in_bfloat16

logger = logging.getLogger(__name__)

_TYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ALIASES: Final = {"float": "float32", "half": "float16"}
_CACHE_TYPES: Final = {
    **_TYPES,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
CACHE_DTYPES: Final = ("auto", *_CACHE_TYPES)
ALLOWED: Final = ("auto", *_TYPES, *_ALIASES)
BFLOAT16_CAPABILITY: Final = (8, 0)
"""The first compute capability that multiplies bfloat16."""


def resolve_dtype(requested: str, checkpoint: str, device: torch.device) -> torch.dtype:
    """Return the dtype for `requested` (one of ALLOWED) and that of the checkpoint.

    "auto" is the checkpoint's; on a CPU, whose kernels have no float16, bfloat16 for it, and float32 instead
    of bfloat16 where that is slow. A log line says so.

    Raises:
        InvalidConfigError: `requested` is none of ALLOWED, or the device does not compute in it.
    """
    if requested not in ALLOWED:
        raise InvalidConfigError(f"dtype is {requested!r}; allowed: {', '.join(ALLOWED)}")
    name = _ALIASES.get(requested, requested)
    chosen = _automatic(checkpoint, device) if name == "auto" else name
    _require_on_device(chosen, requested, device)
    if chosen != checkpoint and name == "auto":
        logger.info(
            "weights are %s; computing in %s, which this CPU's kernels have; dtype=%s is slower here",
            *(checkpoint, chosen, checkpoint),
        )
    elif (chosen, device.type) == ("float16", "cpu"):
        logger.warning("float16 on a CPU is computed by torch, slower than other dtypes by Baton's kernels")
    return _TYPES[chosen]


def resolve_cache_dtype(requested: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of the KV cache of a model that is computed in `dtype`; "auto" is the same.

    Raises:
        InvalidConfigError: the device has no such cache for this model.
    """
    chosen = dtype if requested == "auto" else _CACHE_TYPES.get(requested)
    if chosen is None:
        raise InvalidConfigError(f"kv_cache_dtype is {requested!r}; allowed: {', '.join(CACHE_DTYPES)}")
    if chosen.itemsize > 1 and chosen != dtype:
        allowed = "auto, fp8, fp8_e4m3, fp8_e5m2"
        raise InvalidConfigError(
            f"kv_cache_dtype is {requested!r} with a model in {dtype}; allowed: {allowed}"
        )
    if chosen == torch.float8_e5m2 and device.type == "cuda":
        raise InvalidConfigError(f"kv_cache_dtype is {requested!r}; allowed on a GPU: auto, fp8, fp8_e4m3")
    return chosen


def _automatic(checkpoint: str, device: torch.device) -> str:
    if checkpoint == "float32" or device.type != "cpu":
        return checkpoint
    return "bfloat16" if is_fast_in_bfloat16() else "float32"


def _require_on_device(chosen: str, requested: str, device: torch.device) -> None:
    if device.type == "cuda" and chosen == "bfloat16":
        capability = torch.cuda.get_device_capability(device)
        if capability < BFLOAT16_CAPABILITY:
            shown = ".".join(map(str, capability))
            raise InvalidConfigError(
                f"dtype is {requested!r}, which is bfloat16 for this model; allowed on a GPU of compute "
                f"capability {shown}: float16, float32"
            )
