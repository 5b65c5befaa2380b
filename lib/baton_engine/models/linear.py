"""Linear layers."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


class Linear:
    """`x @ weight.T + bias` with weight `[out_features, in_features]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]`."""
        return functional.linear(x, self._weight, self._bias)
