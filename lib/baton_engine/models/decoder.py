"""The decoder of Llama, Mistral, Qwen2 and Qwen3, parameterised by ModelConfig.

The families differ in biases, in the normalisation of queries and keys, in sliding windows and in the
rotary embedding. Called from the engine thread under inference mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton_engine.model_config import ModelConfig
from baton_engine.models.linear import Linear
from baton_engine.models.norm import RMSNorm
from baton_engine.models.rope import RotaryEmbedding
from baton_engine.step_attention import StepAttention
from baton_engine.weights import WeightReader
from baton_kernels.interface import LayerKernels


class Decoder:
    """A loaded model: token ids to hidden states, hidden states to logits.

    Raises:
        InvalidModelError: the folder's weights do not fit the configuration.
    """

    def __init__(self, config: ModelConfig, weights: WeightReader, kernels: LayerKernels) -> None:
        self.config = config
        self.dtype = weights.dtype
        self.device = weights.device
        vocab_shape = (config.vocab_size, config.hidden_size)
        self._embedding = weights.load("model.embed_tokens.weight", vocab_shape)
        self._rotary = RotaryEmbedding(config.rope, config.head_dim, weights.device)
        self._layers = [_DecoderLayer(config, weights, kernels, layer) for layer in range(config.num_layers)]
        self._norm = _load_norm(weights, kernels, "model.norm", config.hidden_size, config)
        tied = config.tie_word_embeddings
        self._head = Linear(self._embedding if tied else weights.load("lm_head.weight", vocab_shape))

    def forward(self, token_ids: Tensor, attention: StepAttention) -> Tensor:
        """Return the final hidden states `[num_tokens, hidden_size]` of `token_ids` `[num_tokens] int64`.

        Writes the K and V of every token to the cache behind `attention`.
        """
        hidden = self._embedding[token_ids]
        rotation = self._rotary.cos_sin(attention.positions, self.dtype)
        for layer in self._layers:
            hidden = layer.forward(hidden, rotation, attention)
        return self._norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `[num_rows, vocab_size]` of hidden states `[num_rows, hidden_size]`."""
        return self._head(hidden)


class _DecoderLayer:
    """Attention and feed-forward network with their norms and residual sums."""

    def __init__(self, config: ModelConfig, weights: WeightReader, kernels: LayerKernels, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        size = config.hidden_size
        self._attention = _Attention(config, weights, kernels, layer)
        self._mlp = _FeedForward(config, weights, kernels, f"{prefix}.mlp")
        self._input_norm = _load_norm(weights, kernels, f"{prefix}.input_layernorm", size, config)
        self._post_norm = _load_norm(weights, kernels, f"{prefix}.post_attention_layernorm", size, config)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], attention: StepAttention) -> Tensor:
        hidden = hidden + self._attention.forward(self._input_norm(hidden), rotation, attention)
        return hidden + self._mlp.forward(self._post_norm(hidden))


class _Attention:
    """Grouped-query attention over the paged cache, with one fused projection to Q, K and V."""

    def __init__(self, config: ModelConfig, weights: WeightReader, kernels: LayerKernels, layer: int) -> None:
        prefix = f"model.layers.{layer}.self_attn"
        self._layer = layer
        self._head_dim = config.head_dim
        self._scale = config.head_dim**-0.5
        self._sizes = [config.query_size, config.kv_size, config.kv_size]
        names = [f"{prefix}.{name}_proj" for name in "qkv"]
        self._qkv = _load_linear(weights, names, self._sizes, config.hidden_size, config.has_qkv_bias)
        self._output = _load_linear(
            weights, [f"{prefix}.o_proj"], [config.hidden_size], config.query_size, config.has_output_bias
        )
        self._qk_norms: tuple[RMSNorm, RMSNorm] | None = None
        if config.has_qk_norm:
            self._qk_norms = (
                _load_norm(weights, kernels, f"{prefix}.q_norm", config.head_dim, config),
                _load_norm(weights, kernels, f"{prefix}.k_norm", config.head_dim, config),
            )

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], attention: StepAttention) -> Tensor:
        q, k, v = (
            part.view(len(hidden), -1, self._head_dim)
            for part in torch.split(self._qkv(hidden), self._sizes, dim=-1)
        )
        if self._qk_norms is not None:
            q_norm, k_norm = self._qk_norms
            q, k = q_norm(q), k_norm(k)
        attended = attention.rotate_and_attend(self._layer, q, k, v, rotation, scale=self._scale)
        return self._output(attended.flatten(-2))


class _FeedForward:
    """The gated feed-forward network, with one fused projection to gate and up."""

    def __init__(
        self, config: ModelConfig, weights: WeightReader, kernels: LayerKernels, prefix: str
    ) -> None:
        self._kernels = kernels
        inner, has_bias = config.intermediate_size, config.has_mlp_bias
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        self._gate_up = _load_linear(weights, names, [inner, inner], config.hidden_size, has_bias)
        self._down = _load_linear(weights, [f"{prefix}.down_proj"], [config.hidden_size], inner, has_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self._down(self._kernels.silu_mul(self._gate_up(hidden)))


def _load_linear(
    weights: WeightReader, names: Sequence[str], out_sizes: Sequence[int], in_size: int, has_bias: bool
) -> Linear:
    """Load one linear layer made of several, their outputs side by side."""
    weight = weights.load_stacked(
        [f"{name}.weight" for name in names], [(size, in_size) for size in out_sizes]
    )
    if not has_bias:
        return Linear(weight)
    return Linear(
        weight, weights.load_stacked([f"{name}.bias" for name in names], [(size,) for size in out_sizes])
    )


def _load_norm(
    weights: WeightReader, kernels: LayerKernels, name: str, size: int, config: ModelConfig
) -> RMSNorm:
    return RMSNorm(weights.load(f"{name}.weight", (size,)), config.rms_norm_eps, kernels)
