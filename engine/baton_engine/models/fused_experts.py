"""Experts as GPT-OSS has them: a projection of all experts in one tensor, biases, and a clamped gate."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.grouped_linear import GroupedLinear
from baton_engine.models.mixture_config import ClampedSwiGLU, MixtureConfig
from baton_kernels.interface.kernels import Function, LayerKernels


def clamped_swiglu(gate_up: Tensor, swiglu: ClampedSwiGLU, kernels: LayerKernels) -> Tensor:
    """Return the gated activation `[num_rows, n]` of gate and up side by side `[num_rows, 2 * n]`.

    It is computed in float32 and rounded once.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate = gate.clamp(max=swiglu.limit) * swiglu.alpha
    up = up.clamp(min=-swiglu.limit, max=swiglu.limit) + 1
    scaled = kernels.apply_mul(Function.SILU, torch.cat((gate, up), dim=-1))
    return (scaled / swiglu.alpha).to(gate_up.dtype)


def load_fused_experts(
    config: MixtureConfig, weights: WeightReader, prefix: str
) -> tuple[GroupedLinear, GroupedLinear]:
    """Read all experts, gate and up as one projection, and down.

    The files hold `[num_experts, in_features, out_features]`, with the outputs of gate and up in turns.

    Raises:
        InvalidModelError: a tensor is missing or has another shape.
    """
    num_experts, hidden_size, size = config.num_experts, config.hidden_size, config.intermediate_size
    gate_up = weights.load(f"{prefix}.gate_up_proj", (num_experts, hidden_size, 2 * size))
    gate_up_bias = weights.load(f"{prefix}.gate_up_proj_bias", (num_experts, 2 * size))
    down = weights.load(f"{prefix}.down_proj", (num_experts, size, hidden_size))
    down_bias = weights.load(f"{prefix}.down_proj_bias", (num_experts, hidden_size))
    return (
        GroupedLinear(_gate_before_up(gate_up).transpose(1, 2).contiguous(), _gate_before_up(gate_up_bias)),
        GroupedLinear(down.transpose(1, 2).contiguous(), down_bias),
    )


def _gate_before_up(outputs: Tensor) -> Tensor:
    """Return all outputs of gate before all of up; they lie in turns on the last axis."""
    return torch.cat((outputs[..., ::2], outputs[..., 1::2]), dim=-1)
