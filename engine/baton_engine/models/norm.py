"""Root mean square and layer normalization."""

from __future__ import annotations

from torch import Tensor

from baton_engine.checkpoint.weights import WeightReader
from baton_kernels.interface.kernels import LayerKernels


class RMSNorm:
    """Scales the last axis to unit root mean square, computed in float32, then by a learned weight."""

    def __init__(self, weight: Tensor, eps: float, kernels: LayerKernels) -> None:
        self._weight = weight
        self._eps = eps
        self._kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
        """Return a new tensor of the same shape and dtype."""
        return self._kernels.rms_norm(x, self._weight, self._eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the normalised sum and the sum; both arguments may be overwritten. None adds nothing."""
        if residual is None:
            return self(x), x
        return self._kernels.add_rms_norm(x, residual, self._weight, self._eps)


class NormLoader:
    """Loads the norms of one model.

    `is_offset` says that the files hold each weight as its distance from 1, which is added in float32.
    """

    def __init__(self, weights: WeightReader, kernels: LayerKernels, eps: float, *, is_offset: bool) -> None:
        self._weights = weights
        self._kernels = kernels
        self._eps = eps
        self._is_offset = is_offset

    def load(self, name: str, size: int) -> RMSNorm:
        """Raises: InvalidModelError: the weight is missing or has another shape."""
        weight = self._weights.load(f"{name}.weight", (size,))
        return RMSNorm(1.0 + weight.float() if self._is_offset else weight, self._eps, self._kernels)


class LayerNorm:
    """Brings the last axis to mean 0 and variance 1, then scales and shifts it."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None, eps: float, kernels: LayerKernels) -> None:
        self._kernels = kernels
        self._weight = weight
        self._bias = bias
        self._eps = eps

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return a new tensor of the same shape and dtype."""
        return self._kernels.layer_norm(hidden, self._weight, self._bias, self._eps)
