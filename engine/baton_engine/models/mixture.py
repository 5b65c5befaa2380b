"""The feed-forward network as a mixture of experts: each token goes through a few of many.

The (token, expert) pairs of a step are sorted by expert, so that the rows of an expert lie together. Every
sum over a token's experts runs in the order of their weights: but for the rounding of a product, a token's
result does not depend on which tokens share its step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.experts import Experts, load_expert, load_experts
from baton_engine.models.fused_experts import load_fused_experts
from baton_engine.models.linear import Linear, adapted
from baton_engine.models.mixture_config import MixtureConfig
from baton_engine.models.shares import ExpertShare, share_of_experts
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_kernels.interface.kernels import Function, LayerKernels


class MixtureFeedForward:
    """The experts of one layer, their router, and the expert that all tokens share, where there is one.

    Raises:
        InvalidModelError: the weights do not fit the configuration.
    """

    def __init__(
        self,
        config: MixtureConfig,
        weights: WeightReader,
        kernels: LayerKernels,
        layer_prefix: str,
        ranks: Ranks = ALONE,
    ) -> None:
        config = _named_as_stored(config, weights, layer_prefix)
        prefix = f"{layer_prefix}.{config.names.block}"
        self._ranks = ranks.tensor
        self._is_invariant = kernels.is_invariant
        self._num_experts_per_token = config.num_experts_per_token
        self._is_normalized = config.is_normalized
        router, sizes = f"{prefix}.{config.names.router}", (config.num_experts, config.hidden_size)
        self._router = _load_gate(weights, router, *sizes, kernels, has_bias=config.has_bias)
        experts = f"{prefix}.experts"
        share = share_of_experts(ranks, config.num_experts, config.intermediate_size)
        self._experts: Experts = (
            load_experts(config, weights, kernels, experts, share)
            if config.swiglu is None
            else load_fused_experts(config, config.swiglu, weights, kernels, experts, share)
        )
        self._adapters = weights.adapters
        self._num_own = len(share.numbers)
        self._places: Tensor | None = None
        """With experts of other ranks: the place of each expert among this rank's, else behind them."""
        if self._num_own < config.num_experts:
            self._places = torch.full((config.num_experts,), self._num_own, device=weights.device)
            self._places[list(share.numbers)] = torch.arange(self._num_own, device=weights.device)
        self.is_capturable = self._experts.is_capturable and self._places is None
        self._adds_up_rows = ranks.place.sizes.is_invariant
        self._shared: _SharedExpert | None = None
        if config.shared_intermediate_size is not None:
            size = config.shared_intermediate_size
            self._shared = _SharedExpert(config, size, weights, kernels, prefix, ranks)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `[num_tokens, hidden_size]` to a new tensor of the same shape and dtype."""
        expert_weights, experts = self._route(hidden)
        routed = self._run_experts(hidden, expert_weights, experts)
        own = routed if self._shared is None else routed + self._shared.forward(hidden)
        return own if self._adds_up_rows else self._ranks.all_reduce(own)

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
        flat = experts.flatten() if self._places is None else self._places[experts.flatten()]
        order = flat.argsort(stable=True)
        # Counted by comparison: bincount reads its largest value on the host, which no graph can hold.
        numbers = torch.arange(self._num_own, device=flat.device)
        ends = (flat[:, None] == numbers).sum(dim=0).cumsum(dim=0).to(torch.int32)
        tokens = order // num_choices
        slots = None if self._adapters is None else self._adapters.row_slots(num_tokens)
        sorted_rows = self._run_own(hidden[tokens], ends, None if slots is None else slots[tokens])
        rows = sorted_rows[order.argsort()].view(num_tokens, num_choices, -1)
        if self._adds_up_rows:  # of a row all ranks but one have zeros
            rows = self._ranks.all_reduce(rows)
        weighted = rows * expert_weights[:, :, None]
        # On a GPU the order of torch's sum depends on the number of tokens.
        total = reduce(torch.add, weighted.unbind(1)) if self._is_invariant else weighted.sum(dim=1)
        return total.to(hidden.dtype)

    def _run_own(self, rows: Tensor, ends: Tensor, slots: Tensor | None) -> Tensor:
        """Return the results of rows that are sorted by expert; 0 for experts that other ranks hold."""
        if self._places is None:
            return self._experts.forward(rows, ends, slots)
        out, num_own_rows = torch.zeros_like(rows), int(ends[-1])
        if num_own_rows:
            own = None if slots is None else slots[:num_own_rows]
            out[:num_own_rows] = self._experts.forward(rows[:num_own_rows], ends, own)
        return out


class _SharedExpert:
    """The expert of all tokens, scaled for each token by a gate of its own."""

    def __init__(
        self,
        config: MixtureConfig,
        size: int,
        weights: WeightReader,
        kernels: LayerKernels,
        prefix: str,
        ranks: Ranks,
    ) -> None:
        self._kernels = kernels
        is_whole = ranks.tensor.size == 1 or ranks.place.sizes.is_invariant
        inner = None if is_whole else ranks.place.part(size)
        share = ExpertShare(numbers=range(1), inner=inner, ranks=ranks.tensor)
        expert = f"{prefix}.shared_expert"
        self._expert = load_expert(
            config.names, weights, kernels, expert, config.hidden_size, size, share, takes_adapters=True
        )
        gate, width = f"{prefix}.shared_expert_gate", config.hidden_size
        scale = _load_gate(weights, gate, 1, width, kernels)
        self._scale = adapted(weights, scale, [gate], kernels, in_size=width, out_sizes=[1])

    def forward(self, hidden: Tensor) -> Tensor:
        # The sigmoid, from a function that kernels have: torch's depends on where in a batch a number lies.
        half = self._kernels.apply(Function.TANH, self._scale(hidden).float() / 2)
        return ((half + 1) / 2).to(hidden.dtype) * self._expert(hidden)


def _named_as_stored(config: MixtureConfig, weights: WeightReader, layer_prefix: str) -> MixtureConfig:
    """Return the configuration with those of its names that the files have."""
    for names in (config.names, config.other_names):
        if names is not None and f"{layer_prefix}.{names.block}.{names.router}.weight" in weights:
            return replace(config, names=names)
    return config


def _load_gate(
    weights: WeightReader,
    layer: str,
    out_size: int,
    in_size: int,
    kernels: LayerKernels,
    *,
    has_bias: bool = False,
) -> Linear:
    """Load a layer that decides between experts: nothing quantizes it while it is loaded."""
    bias = weights.load(f"{layer}.bias", (out_size,)) if has_bias else None
    if weights.is_quantized(layer):
        stored = weights.load_quantized(layer, out_size, in_size)
        return Linear(stored, bias, kernels, dtype=weights.dtype)
    return Linear(weights.load(f"{layer}.weight", (out_size, in_size)), bias, kernels)
