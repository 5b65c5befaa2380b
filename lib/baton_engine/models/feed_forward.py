"""The dense feed-forward network of one decoder layer."""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

import torch
from torch import Tensor

from baton_engine.models.decoder_config import FeedForwardConfig
from baton_engine.models.projection import load_projection
from baton_engine.weights import WeightReader
from baton_kernels.interface import Function, LayerKernels

_CPU_ROWS: Final = 512
"""Tokens at a time on a CPU, so that what lies between the projections stays in its caches."""


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
            kernels,
            in_size=hidden_size,
            out_sizes=[inner, inner],
            has_bias=has_bias,
        )
        self._down = load_projection(
            weights, prefix, ["down_proj"], kernels, in_size=inner, out_sizes=[hidden_size], has_bias=has_bias
        )
        is_silu = config.activation == "silu"
        self._activate = kernels.silu_mul if is_silu else partial(kernels.apply_mul, Function.GELU_TANH)

    def forward(self, hidden: Tensor) -> Tensor:
        if hidden.device.type != "cpu" or len(hidden) <= _CPU_ROWS:
            return self._map(hidden)
        starts = range(0, len(hidden), _CPU_ROWS)
        return torch.cat([self._map(hidden[start : start + _CPU_ROWS]) for start in starts])

    def _map(self, hidden: Tensor) -> Tensor:
        return self._down(self._activate(self._gate_up(hidden)))
