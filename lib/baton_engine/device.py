"""Which device a worker computes on."""

from __future__ import annotations

from typing import Final

import torch

from baton_core.errors import InvalidConfigError

ALLOWED: Final = ("auto", "cpu", "cuda")


def resolve_device(requested: str) -> torch.device:
    """Return the device for `requested`, one of ALLOWED; "auto" is the GPU where torch sees one.

    Raises:
        InvalidConfigError: `requested` is none of ALLOWED, or a GPU that torch cannot use.
    """
    if requested not in ALLOWED:
        raise InvalidConfigError(f"device is {requested!r}; allowed: {', '.join(ALLOWED)}")
    if requested == "cuda" and not torch.cuda.is_available():
        why = "sees no GPU" if torch.version.cuda else "is built without CUDA"
        raise InvalidConfigError(f"device is 'cuda'; allowed: auto, cpu (torch {torch.__version__} {why})")
    if requested == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
