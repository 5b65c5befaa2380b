"""Root mean square normalisation."""

from __future__ import annotations

from torch import Tensor

from baton_kernels.interface import LayerKernels


class RMSNorm:
    """Scales the last axis to unit root mean square, computed in float32, then by a learned weight."""

    def __init__(self, weight: Tensor, eps: float, kernels: LayerKernels) -> None:
        self._weight = weight
        self._eps = eps
        self._kernels = kernels

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return a new tensor of the same shape and dtype."""
        return self._kernels.rms_norm(hidden, self._weight, self._eps)
