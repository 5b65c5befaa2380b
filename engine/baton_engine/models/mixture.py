"""The feed-forward network as a mixture of experts: each token goes through a few of many.

The (token, expert) pairs of a step are sorted by expert, so that each of the two linear layers is one grouped
product over all experts. Every sum over a token's experts runs in the order of their weights: but for the
rounding of a product, a token's result does not depend on which tokens share its step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.fused_experts import clamped_swiglu, load_fused_experts
from baton_engine.models.grouped_linear import GroupedLinear, Groups
from baton_engine.models.linear import Linear
from baton_engine.models.mixture_config import MixtureConfig
from baton_kernels.interface.kernels import Function, LayerKernels


class MixtureFeedForward:
    """The experts of one layer, their router, and the expert that all tokens share, where there is one.

    Raises:
        InvalidModelError: the weights do not fit the configuration.
    """

    def __init__(
        self, config: MixtureConfig, weights: WeightReader, kernels: LayerKernels, layer_prefix: str
    ) -> None:
        prefix = f"{layer_prefix}.{config.names.block}"
        self._num_experts = config.num_experts
        self._num_experts_per_token = config.num_experts_per_token
        self._is_normalized = config.is_normalized
        self._kernels = kernels
        self._router = _load_router(config, weights, kernels, f"{prefix}.{config.names.router}")
        experts = f"{prefix}.experts"
        self._gate_up, self._down = (
            load_fused_experts(config, weights, kernels, experts)
            if config.is_fused
            else _load_experts(config, weights, experts)
        )
        self._swiglu = config.swiglu
        self.is_capturable = self._gate_up.is_device_only and self._down.is_device_only
        self._shared: _SharedExpert | None = None
        if config.shared_intermediate_size is not None:
            self._shared = _SharedExpert(config, config.shared_intermediate_size, weights, kernels, prefix)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `[num_tokens, hidden_size]` to a new tensor of the same shape and dtype."""
        expert_weights, experts = self._route(hidden)
        routed = self._run_experts(hidden, expert_weights, experts)
        return routed if self._shared is None else routed + self._shared.forward(hidden)

    def _route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights in float32 and the numbers of each token's experts, best first.

        Both are `[num_tokens, num_experts_per_token]`.
        """
        logits, num_choices = self._router(hidden), self._num_experts_per_token
        if self._is_normalized:  # as if all experts' weights were divided by the sum of these
            best, experts = logits.topk(num_choices, dim=-1)
            return best.softmax(dim=-1, dtype=torch.float32), experts
        return logits.softmax(dim=-1, dtype=torch.float32).topk(num_choices, dim=-1)

    def _run_experts(self, hidden: Tensor, expert_weights: Tensor, experts: Tensor) -> Tensor:
        num_tokens, num_choices = experts.shape
        flat = experts.flatten()
        order = flat.argsort(stable=True)
        # Counted by comparison: bincount reads its largest value on the host, which no graph can hold.
        numbers = torch.arange(self._num_experts, device=flat.device)
        ends = (flat[:, None] == numbers).sum(dim=0).cumsum(dim=0).to(torch.int32)
        groups = Groups(ends=ends, of_row=flat[order])
        gated = self._gate(self._gate_up(hidden[order // num_choices], groups))
        sorted_rows = self._down(gated, groups)
        rows = sorted_rows[order.argsort()].view(num_tokens, num_choices, -1)
        return (rows * expert_weights[:, :, None]).sum(dim=1).to(hidden.dtype)

    def _gate(self, gate_up: Tensor) -> Tensor:
        if self._swiglu is None:
            return self._kernels.apply_mul(Function.SILU, gate_up)
        return clamped_swiglu(gate_up, self._swiglu, self._kernels)


class _SharedExpert:
    """The expert of all tokens, scaled for each token by a gate of its own."""

    def __init__(
        self, config: MixtureConfig, size: int, weights: WeightReader, kernels: LayerKernels, prefix: str
    ) -> None:
        hidden_size, expert = config.hidden_size, f"{prefix}.shared_expert"
        names = [f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight"]
        self._gate_up = Linear(weights.load_stacked(names, [(size, hidden_size)] * 2), kernels=kernels)
        self._down = Linear(weights.load(f"{expert}.down_proj.weight", (hidden_size, size)), kernels=kernels)
        self._scale = Linear(
            weights.load(f"{prefix}.shared_expert_gate.weight", (1, hidden_size)), kernels=kernels
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return self._scale(hidden).sigmoid() * self._down(self._gate_up.gated(Function.SILU, hidden))


def _load_router(config: MixtureConfig, weights: WeightReader, kernels: LayerKernels, name: str) -> Linear:
    weight = weights.load(f"{name}.weight", (config.num_experts, config.hidden_size))
    bias = weights.load(f"{name}.bias", (config.num_experts,)) if config.has_bias else None
    return Linear(weight, bias, kernels)


def _load_experts(
    config: MixtureConfig, weights: WeightReader, prefix: str
) -> tuple[GroupedLinear, GroupedLinear]:
    """Read all experts, gate and up as one projection, and down."""
    experts, names = range(config.num_experts), config.names
    hidden_size, size = config.hidden_size, config.intermediate_size
    gate_up = weights.load_stacked(
        [f"{prefix}.{expert}.{name}.weight" for expert in experts for name in (names.gate, names.up)],
        [(size, hidden_size)] * (2 * config.num_experts),
    )
    down = weights.load_stacked(
        [f"{prefix}.{expert}.{names.down}.weight" for expert in experts],
        [(hidden_size, size)] * config.num_experts,
    )
    return (
        GroupedLinear(gate_up.view(config.num_experts, 2 * size, hidden_size)),
        GroupedLinear(down.view(config.num_experts, hidden_size, size)),
    )
