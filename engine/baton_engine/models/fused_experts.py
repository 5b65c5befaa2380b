"""Experts as GPT-OSS has them: a projection of all experts in one tensor, biases, and a clamped gate.

The files hold a projection as `[num_experts, in_features, out_features]`, or as codes with the outputs before
the inputs. The outputs of gate and up lie in turns; here all of gate come first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton_engine.checkpoint.weights import Part, WeightReader
from baton_engine.models.experts import Experts, SeparateExperts, grouped_linear, is_device_only
from baton_engine.models.linear import Linear, is_to_quantize, make_linear, share_to_read, undividable
from baton_engine.models.mixture_config import ClampedSwiGLU, MixtureConfig
from baton_engine.models.shares import ExpertShare
from baton_kernels.interface.kernels import Function, LayerKernels
from baton_kernels.interface.quantized import QuantizedWeight, stack
from baton_kernels.interface.quantized_parts import take_inputs


def clamped_swiglu(gate_up: Tensor, swiglu: ClampedSwiGLU, kernels: LayerKernels) -> Tensor:
    """Return the gated activation `[num_rows, n]` of gate and up side by side `[num_rows, 2 * n]`.

    It is computed in float32 and rounded once.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate = gate.clamp(max=swiglu.limit) * swiglu.alpha
    up = up.clamp(min=-swiglu.limit, max=swiglu.limit) + 1
    scaled = kernels.apply_mul(Function.SILU, torch.cat((gate, up), dim=-1))
    return (scaled / swiglu.alpha).to(gate_up.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projection:
    """The names and the size of one projection of all experts."""

    name: str
    num_experts: int
    share: ExpertShare
    out_features: int
    in_features: int
    is_gate_up: bool

    @property
    def _experts(self) -> Part | None:
        numbers = self.share.numbers
        return None if numbers == range(self.num_experts) else Part(0, numbers)

    @property
    def _outputs(self) -> range:
        """The outputs that are wanted, as they are stored."""
        inner = self.share.inner
        if inner is None or not self.is_gate_up:
            return range(self.out_features)
        return range(2 * inner.start, 2 * inner.stop)

    def load_biases(self, weights: WeightReader) -> Tensor:
        """Return the biases of the share `[num_experts, out_features]`."""
        shape, is_cut = (self.num_experts, self.out_features), self.share.inner is not None
        part = Part(1, self._outputs) if is_cut else self._experts
        biases = weights.load(f"{self.name}_bias", shape, weights.linear_dtype, part)
        if self.is_gate_up:
            return _gate_before_up(biases)
        return biases if self.share.has_bias else torch.zeros_like(biases)

    def load_weights(self, weights: WeightReader) -> Tensor:
        """Return the weights of the share `[num_experts, out_features, in_features]`."""
        shape, part = (self.num_experts, self.in_features, self.out_features), self._experts
        if self.share.inner is not None:
            part = Part(2, self._outputs) if self.is_gate_up else Part(1, self.share.inner)
        stored = weights.load(self.name, shape, weights.linear_dtype, part)
        return (_gate_before_up(stored) if self.is_gate_up else stored).transpose(1, 2).contiguous()

    def load_separately(self, weights: WeightReader, kernels: LayerKernels) -> list[Linear]:
        """Return a layer for each expert, of codes where the files or the plan of quantization say so."""
        layers: list[Tensor | QuantizedWeight]
        share, parts = self.share.columns, 1
        if self.is_gate_up:
            share, parts = self.share.rows, 2
        if weights.is_quantized(self.name):
            sizes = self.out_features, self.in_features, self.num_experts
            try:
                layers = self._split(weights.load_quantized(self.name, *sizes))
            except ValueError as error:
                raise undividable(self.name, error) from None
        else:
            is_whole = share_to_read(weights, self.name, share).is_whole
            whole = replace(self, share=ExpertShare(numbers=self.share.numbers))
            layers = list((whole if is_whole else self).load_weights(weights))
        pairs = zip(layers, self.load_biases(weights), strict=True)
        out_sizes = [self.out_features // parts] * parts
        return [
            make_linear(weights, self.name, weight, bias, kernels, out_sizes=out_sizes, share=share)
            for weight, bias in pairs
        ]

    def _split(self, fused: QuantizedWeight) -> list[Tensor | QuantizedWeight]:
        starts, own = [n * self.out_features for n in self.share.numbers], self._outputs
        experts = [fused.outputs(slice(start + own.start, start + own.stop)) for start in starts]
        if self.is_gate_up:
            return [stack([one.outputs(slice(first, None, 2)) for first in (0, 1)]) for one in experts]
        inputs = self.share.inner
        return list(experts if inputs is None else [take_inputs(one, inputs) for one in experts])


class GroupedClampedExperts:
    """Experts whose projections are one grouped product each; weights are `[num_experts, out, in]`."""

    def __init__(
        self,
        gate_up: tuple[Tensor, Tensor],
        down: tuple[Tensor, Tensor],
        swiglu: ClampedSwiGLU,
        kernels: LayerKernels,
    ) -> None:
        """Take weights and biases of the projections."""
        self._gate_up, self._down, self._swiglu, self._kernels = gate_up, down, swiglu, kernels
        self.is_capturable = is_device_only(gate_up[0]) and is_device_only(down[0])

    def forward(self, rows: Tensor, ends: Tensor, slots: Tensor | None = None) -> Tensor:
        experts = torch.searchsorted(
            ends, torch.arange(len(rows), dtype=ends.dtype, device=rows.device), right=True
        )
        gate_up = _project(rows, *self._gate_up, ends, experts)
        return _project(clamped_swiglu(gate_up, self._swiglu, self._kernels), *self._down, ends, experts)


def _project(rows: Tensor, weights: Tensor, biases: Tensor, ends: Tensor, experts: Tensor) -> Tensor:
    return grouped_linear(rows, weights, ends).add_(biases[experts])


class ClampedExpert:
    """One expert; its layers may be of codes."""

    def __init__(self, gate_up: Linear, down: Linear, swiglu: ClampedSwiGLU, kernels: LayerKernels) -> None:
        self._gate_up, self._down, self._swiglu, self._kernels = gate_up, down, swiglu, kernels

    def __call__(self, rows: Tensor) -> Tensor:
        """Map `[num_rows, hidden_size]` to a new tensor of the same shape."""
        return self._down(clamped_swiglu(self._gate_up(rows), self._swiglu, self._kernels))


def load_fused_experts(
    config: MixtureConfig,
    swiglu: ClampedSwiGLU,
    weights: WeightReader,
    kernels: LayerKernels,
    prefix: str,
    share: ExpertShare,
) -> Experts:
    """Read a share of the experts.

    They are separate if a projection is quantized, in the files or while it is loaded, and under
    batch-invariant kernels.

    Raises:
        InvalidModelError: a tensor is missing or has another shape.
    """
    gate_up = _Projection(
        name=f"{prefix}.gate_up_proj",
        num_experts=config.num_experts,
        share=share,
        out_features=2 * config.intermediate_size,
        in_features=config.hidden_size,
        is_gate_up=True,
    )
    down = _Projection(
        name=f"{prefix}.down_proj",
        num_experts=config.num_experts,
        share=share,
        out_features=config.hidden_size,
        in_features=config.intermediate_size,
        is_gate_up=False,
    )
    is_quantized = is_to_quantize(weights, gate_up.name) or is_to_quantize(weights, down.name)
    if kernels.is_invariant or is_quantized:
        layers = zip(
            gate_up.load_separately(weights, kernels), down.load_separately(weights, kernels), strict=True
        )
        return SeparateExperts([ClampedExpert(*pair, swiglu=swiglu, kernels=kernels) for pair in layers])
    both = [(one.load_weights(weights), one.load_biases(weights)) for one in (gate_up, down)]
    return GroupedClampedExperts(both[0], both[1], swiglu, kernels)


def _gate_before_up(outputs: Tensor) -> Tensor:
    """Return all outputs of gate before all of up; they lie in turns on the last axis."""
    return torch.cat((outputs[..., ::2], outputs[..., 1::2]), dim=-1)
