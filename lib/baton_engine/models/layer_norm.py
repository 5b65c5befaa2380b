"""Layer normalisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


class LayerNorm:
    """Brings the last axis, of `size` elements, to mean 0 and variance 1, then scales and shifts it."""

    def __init__(self, size: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
        self._shape = (size,)
        self._weight = weight
        self._bias = bias
        self._eps = eps

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return a new tensor of the same shape and dtype."""
        return functional.layer_norm(hidden, self._shape, self._weight, self._bias, self._eps)
