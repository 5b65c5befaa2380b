"""Rotary position embeddings, in the half-split form of the Llama family."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from baton_engine.model_config import RopeParameters


class RotaryEmbedding:
    """Rotates queries and keys by their positions."""

    def __init__(self, rope: RopeParameters, head_dim: int, device: torch.device) -> None:
        self._inv_freq = inverse_frequencies(rope, head_dim).to(device)

    def cos_sin(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, `[num_tokens, 1, head_dim]` each, of positions `[num_tokens] int64`."""
        angles = positions[:, None].float() * self._inv_freq
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def inverse_frequencies(rope: RopeParameters, head_dim: int) -> Tensor:
    """Return the angle per position of each pair of dimensions, `[head_dim / 2] float32`."""
    inv_freq = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    match rope.rope_type:
        case "linear":
            return inv_freq / rope.factor
        case "llama3":
            return _llama3_scaled(inv_freq, rope)
        case "default":
            return inv_freq


def _llama3_scaled(inv_freq: Tensor, rope: RopeParameters) -> Tensor:
    """Slow down long wavelengths by `factor`, keep short ones, blend between.

    Source: Llama 3.1's reference code (`apply_scaling` of meta-llama/llama-models).
    """
    original_len = rope.original_max_position_embeddings
    wavelengths = 2 * math.pi / inv_freq
    blend = (original_len / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * inv_freq / rope.factor + blend * inv_freq
    scaled = torch.where(wavelengths > original_len / rope.low_freq_factor, inv_freq / rope.factor, blended)
    return torch.where(wavelengths < original_len / rope.high_freq_factor, inv_freq, scaled)
