"""Rotary position embeddings, in the half-split form of the Llama family."""

from __future__ import annotations

import math
from typing import assert_never

import torch
from torch import Tensor

from baton_engine.models.rope_config import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from baton_kernels.interface.kernels import LayerKernels


class RotaryEmbedding:
    """By which cosine and sine queries and keys are rotated."""

    def __init__(self, rope: RopeConfig, device: torch.device, kernels: LayerKernels) -> None:
        self._kernels = kernels
        self._inv_freq = inverse_frequencies(rope).repeat(2).to(device)
        self._magnitude = rope.magnitude

    def cos_sin(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, `[num_tokens, 1, rotary_dim]` each, of positions `[num_tokens] int64`."""
        return self._kernels.rotary_angles(positions, self._inv_freq, self._magnitude, dtype)


def inverse_frequencies(rope: RopeConfig) -> Tensor:
    """Return the angle per position of each pair of dimensions, `[rotary_dim / 2] float32`."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    wavelengths = rope.theta**exponents
    match rope.scaling:
        case None:
            return 1.0 / wavelengths
        case LinearScaling(factor=factor):
            return 1.0 / wavelengths / factor
        case LongRopeScaling(factors=factors):
            return 1.0 / (torch.tensor(factors) * wavelengths)
        case Llama3Scaling():
            return _llama3_scaled(1.0 / wavelengths, rope.scaling)
        case YarnScaling():
            return _yarn_scaled(wavelengths, rope, rope.scaling)
        case _:
            assert_never(rope.scaling)


def _llama3_scaled(inv_freq: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slow down long wavelengths by `factor`, keep short ones, blend between.

    Source: Llama 3.1's reference code (`apply_scaling` of meta-llama/llama-models).
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelengths = 2 * math.pi / inv_freq
    blend = (scaling.original_len / wavelengths - low) / (high - low)
    blended = (1 - blend) * inv_freq / scaling.factor + blend * inv_freq
    is_long = wavelengths > scaling.original_len / low
    scaled = torch.where(is_long, inv_freq / scaling.factor, blended)
    return torch.where(wavelengths < scaling.original_len / high, inv_freq, scaled)


def _yarn_scaled(wavelengths: Tensor, rope: RopeConfig, scaling: YarnScaling) -> Tensor:
    """Keep the frequencies of the first dimensions, divide those of the last by `factor`, blend between.

    Source: YaRN (arXiv 2309.00071), section 3.2.
    """

    def dimension_of(num_turns: float) -> float:
        """Return the dimension whose frequency makes so many turns over the original context."""
        turns = math.log(scaling.original_len / (num_turns * 2 * math.pi))
        return rope.rotary_dim * turns / (2 * math.log(rope.theta))

    first, last = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.rounds_ramp:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.rotary_dim - 1)
    if first == last:
        last += 0.001
    divided = ((torch.arange(len(wavelengths), dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    kept = 1 - divided
    return (1.0 / (scaling.factor * wavelengths)) * (1 - kept) + (1.0 / wavelengths) * kept
