"""Root mean square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor


class RMSNorm:
    """Scales the last axis to unit root mean square, computed in float32, then by a learned weight."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return a new tensor of the same shape and dtype."""
        wide = hidden.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self._weight * (wide * torch.rsqrt(variance + self._eps)).to(hidden.dtype)
