"""Experts as GPT-OSS has them: a projection of all experts in one tensor, biases, and a clamped gate."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.grouped_linear import GroupedLinear, GroupedProducts
from baton_engine.models.linear import make_linear
from baton_engine.models.mixture_config import ClampedSwiGLU, MixtureConfig
from baton_kernels.interface.kernels import Function, LayerKernels
from baton_kernels.interface.quantized import stack


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
    config: MixtureConfig, weights: WeightReader, kernels: LayerKernels, prefix: str
) -> tuple[GroupedLinear | GroupedProducts, GroupedLinear | GroupedProducts]:
    """Read all experts, gate and up as one projection, and down.

    The files hold weights as `[num_experts, in_features, out_features]` or as codes, with the outputs of gate
    and up in turns.

    Raises:
        InvalidModelError: a tensor is missing or has another shape.
    """
    num_experts, hidden_size, size = config.num_experts, config.hidden_size, config.intermediate_size
    names = [f"{prefix}.{name}" for name in ("gate_up_proj", "down_proj")]
    sizes = [(2 * size, hidden_size), (hidden_size, size)]
    gate_up_bias, down_bias = (
        weights.load(f"{name}_bias", (num_experts, out_features))
        for name, (out_features, _) in zip(names, sizes, strict=True)
    )
    biases = _gate_before_up(gate_up_bias), down_bias
    if weights.is_quantized(names[0]):
        loaded = [_load_codes(weights, kernels, *one) for one in zip(names, sizes, biases, strict=True)]
        return loaded[0], loaded[1]
    gate_up, down = (
        weights.load(name, (num_experts, in_features, out_features))
        for name, (out_features, in_features) in zip(names, sizes, strict=True)
    )
    return (
        GroupedLinear(_gate_before_up(gate_up).transpose(1, 2).contiguous(), biases[0]),
        GroupedLinear(down.transpose(1, 2).contiguous(), biases[1]),
    )


def _load_codes(
    weights: WeightReader, kernels: LayerKernels, name: str, size: tuple[int, int], biases: Tensor
) -> GroupedProducts:
    """Read a projection of all experts that is stored quantized; `size` is that of one expert's."""
    out_features, in_features = size
    fused = weights.load_quantized(name, out_features, in_features, len(biases))
    layers = []
    for expert, bias in enumerate(biases):
        weight = fused.outputs(slice(expert * out_features, (expert + 1) * out_features))
        if name.endswith("gate_up_proj"):
            weight = stack([weight.outputs(slice(first, None, 2)) for first in (0, 1)])
        layers.append(make_linear(weights, name, weight, bias, kernels))
    return GroupedProducts(layers, out_features)


def _gate_before_up(outputs: Tensor) -> Tensor:
    """Return all outputs of gate before all of up; they lie in turns on the last axis."""
    return torch.cat((outputs[..., ::2], outputs[..., 1::2]), dim=-1)
