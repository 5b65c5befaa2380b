"""The feed-forward network as a mixture of experts: each token goes through a few of many.

The (token, expert) pairs of a step are sorted by expert, so that each of the two linear layers is one grouped
product over all experts. Every sum over a token's experts runs in the order of their weights: but for the
rounding of a product, a token's result does not depend on which tokens share its step.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.linear import Linear
from baton_engine.models.mixture_config import MixtureConfig
from baton_kernels.interface.kernels import Function, LayerKernels

_GROUPED_ALIGNMENT_BYTES: Final = 16
_MIN_CUDA_CAPABILITY: Final = (8, 0)
_DEVICE_ONLY_CUDA_MAJORS: Final = (9, 10)


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
        gate = weights.load(f"{prefix}.gate.weight", (config.num_experts, config.hidden_size))
        self._router = Linear(gate, kernels=kernels)
        self._gate_up, self._down = _load_experts(config, weights, f"{prefix}.experts")
        self.is_capturable = all(map(is_device_only, (self._gate_up, self._down)))
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
        probabilities = self._router(hidden).softmax(dim=-1, dtype=torch.float32)
        expert_weights, experts = probabilities.topk(self._num_experts_per_token, dim=-1)
        if self._is_normalized:
            expert_weights = expert_weights / expert_weights.sum(dim=-1, keepdim=True)
        return expert_weights, experts

    def _run_experts(self, hidden: Tensor, expert_weights: Tensor, experts: Tensor) -> Tensor:
        num_tokens, num_choices = experts.shape
        flat = experts.flatten()
        order = flat.argsort(stable=True)
        # Counted by comparison: bincount reads its largest value on the host, which no graph can hold.
        numbers = torch.arange(self._num_experts, device=flat.device)
        ends = (flat[:, None] == numbers).sum(dim=0).cumsum(dim=0).to(torch.int32)
        gate_up = grouped_linear(hidden[order // num_choices], self._gate_up, ends)
        sorted_rows = grouped_linear(self._kernels.apply_mul(Function.SILU, gate_up), self._down, ends)
        rows = sorted_rows[order.argsort()].view(num_tokens, num_choices, -1)
        return (rows * expert_weights[:, :, None]).sum(dim=1).to(hidden.dtype)


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


def grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Return `rows[i] @ weight[e].T` for every row i, e being the group that holds the row.

    `rows` is `[num_rows, in_features]`, sorted by group; `weight` is `[num_groups, out_features,
    in_features]`; `ends` is `[num_groups] int32`, the row after the last of each group. Returns a new
    `[num_rows, out_features]`.
    """
    if _has_grouped_product(weight):
        return functional.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    out = rows.new_empty(len(rows), weight.shape[1])
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            torch.mm(rows[start:end], weight[group].T, out=out[start:end])
        start = end
    return out


def is_device_only(weight: Tensor) -> bool:
    """Say whether `grouped_linear` takes `ends` from the device alone.

    Torch does so for bfloat16 on CUDA devices 9.x and 10.x; elsewhere it reads them on the host, like the
    loop.

    Source: `_grouped_mm_cuda` and `_grouped_mm_fallback` of PyTorch's ATen.
    """
    return (
        weight.device.type == "cuda"
        and weight.dtype == torch.bfloat16
        and _has_grouped_product(weight)
        and torch.cuda.get_device_capability(weight.device)[0] in _DEVICE_ONLY_CUDA_MAJORS
    )


def _has_grouped_product(weight: Tensor) -> bool:
    """Say whether torch has the product for this device and for rows of this length."""
    if weight.shape[-1] * weight.itemsize % _GROUPED_ALIGNMENT_BYTES:
        return False
    is_cuda = weight.device.type == "cuda"
    return not is_cuda or torch.cuda.get_device_capability(weight.device) >= _MIN_CUDA_CAPABILITY


def _load_experts(config: MixtureConfig, weights: WeightReader, prefix: str) -> tuple[Tensor, Tensor]:
    """Read all experts into two tensors.

    Returns gate and up `[num_experts, 2 * intermediate_size, hidden_size]` and down
    `[num_experts, hidden_size, intermediate_size]`.
    """
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
        gate_up.view(config.num_experts, 2 * size, hidden_size),
        down.view(config.num_experts, hidden_size, size),
    )
