"""The dense feed-forward network of one decoder layer."""

from __future__ import annotations

from typing import Final, Protocol

import torch
from torch import Tensor

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.decoder_config import FeedForwardConfig
from baton_engine.models.linear import load_projection
from baton_engine.models.shares import Layer, Share, load_summed, share_of_outputs
from baton_engine.ranks.ranks import Ranks
from baton_kernels.interface.kernels import Function, LayerKernels

_CPU_ROWS: Final = 512
"""Tokens at a time on a CPU, so that gates that are written before they are multiplied stay in its caches."""


class FeedForward(Protocol):
    """The feed-forward network of a decoder layer."""

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
        ranks: Ranks,
        *,
        hidden_size: int,
        prefix: str,
    ) -> None:
        inner, has_bias = config.intermediate_size, config.has_bias
        own = ranks.place.part(inner)
        self.is_capturable = True
        self._gate_up = load_projection(
            weights,
            [f"{prefix}.{name}" for name in config.projections],
            kernels,
            in_size=hidden_size,
            out_sizes=[inner, inner],
            has_bias=has_bias,
            share=share_of_outputs(ranks, own, own),
        )

        def load_down(share: Share, has_bias: bool) -> Layer:
            return load_projection(
                *(weights, [f"{prefix}.down_proj"], kernels),
                in_size=inner,
                out_sizes=[hidden_size],
                has_bias=has_bias,
                share=share,
            )

        self._down = load_summed(load_down, ranks, own, has_bias=has_bias)
        self._kernels, self._adapters = kernels, weights.adapters
        self._is_invariant = ranks.place.sizes.is_invariant
        self._activation = Function.SILU if config.activation == "silu" else Function.GELU_TANH
        is_in_pieces = weights.device.type == "cpu" and not self._gate_up.gates(self._activation)
        self._num_rows = _CPU_ROWS if is_in_pieces else None

    def forward(self, hidden: Tensor) -> Tensor:
        has_adapters = self._adapters is not None and self._adapters.is_active
        if self._num_rows is None or len(hidden) <= self._num_rows or has_adapters:
            return self._map(hidden)
        starts = range(0, len(hidden), self._num_rows)
        return torch.cat([self._map(hidden[start : start + self._num_rows]) for start in starts])

    def _map(self, hidden: Tensor) -> Tensor:
        if self._is_invariant:  # whether both are one pass depends on the number of outputs
            return self._down(self._kernels.apply_mul(self._activation, self._gate_up(hidden)))
        return self._down(self._gate_up.gated(self._activation, hidden))
