"""The dense feed-forward network of one decoder layer."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from baton_engine.models.decoder_config import FeedForwardConfig
from baton_engine.models.projection import load_projection
from baton_engine.weights import WeightReader
from baton_kernels.interface import LayerKernels


class FeedForward(Protocol):
    """What a decoder layer does to each token by itself."""

    @property
    def is_capturable(self) -> bool:
        """As `Model.is_capturable`."""
        ...

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `[num_tokens, hidden_size]` to a new tensor of the same shape."""
        ...


class GatedFeedForward:
    """`down(activation(gate(x)) * up(x))`, with one projection to gate and up.

    Raises:
        InvalidModelError: the weights do not fit the configuration.
    """

    def __init__(
        self,
        config: FeedForwardConfig,
        weights: WeightReader,
        kernels: LayerKernels,
        *,
        hidden_size: int,
        prefix: str,
    ) -> None:
        inner, has_bias = config.intermediate_size, config.has_bias
        self.is_capturable = True
        self._gate_up = load_projection(
            weights,
            prefix,
            config.projections,
            in_size=hidden_size,
            out_sizes=[inner, inner],
            has_bias=has_bias,
        )
        self._down = load_projection(
            weights, prefix, ["down_proj"], in_size=inner, out_sizes=[hidden_size], has_bias=has_bias
        )
        self._activate = kernels.silu_mul if config.activation == "silu" else _gelu_tanh_mul

    def forward(self, hidden: Tensor) -> Tensor:
        return self._down(self._activate(self._gate_up(hidden)))


def _gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up` `[num_rows, n]` of both side by side `[num_rows, 2 * n]`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up
