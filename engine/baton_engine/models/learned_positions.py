"""The decoder of GPT-2 and OPT, parameterised by LearnedPositionsConfig.

Positions are a learned table added to the embedding, so a sequence can never be longer than the table.
Called from the engine thread under inference mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.learned_positions_config import LearnedPositionsConfig
from baton_engine.models.linear import Linear, load_head, make_linear
from baton_engine.models.norm import LayerNorm
from baton_engine.models.step_attention import StepAttention
from baton_kernels.interface.kernels import Function, LayerKernels
from baton_kernels.interface.quantized import stack

_GELUS: Final = {
    "gelu": Function.GELU,
    "gelu_new": Function.GELU_TANH,
    "gelu_pytorch_tanh": Function.GELU_TANH,
}


class LearnedPositionsDecoder:
    """A loaded model: token ids to hidden states, hidden states to logits.

    Raises:
        InvalidModelError: the folder's weights do not fit the configuration.
    """

    def __init__(self, config: LearnedPositionsConfig, weights: WeightReader, kernels: LayerKernels) -> None:
        tensors = _Tensors(config, weights, kernels)
        names, size = config.names, config.hidden_size
        self.dtype = weights.dtype
        self.device = weights.device
        self.is_capturable = True
        self._offset = config.position_offset
        vocab_shape = (config.vocab_size, config.embedding_size)
        self._embedding = tensors.load(f"{names.embedding}.weight", vocab_shape)
        num_positions = config.max_position_embeddings + config.position_offset
        self._positions = tensors.load(f"{names.positions}.weight", (num_positions, size))
        self._layers = [_Layer(config, tensors, kernels, layer) for layer in range(config.num_layers)]
        self._final_norm = tensors.norm(names.final_norm) if config.has_final_norm else None
        self._project_in, self._project_out = _load_projections(config, tensors)
        tied = config.tie_word_embeddings
        self._head = load_head(weights, "lm_head", self._embedding, kernels, is_tied=tied)

    def forward(self, token_ids: Tensor, attention: StepAttention, rows: Tensor | None = None) -> Tensor:
        """Return the final hidden states `[num_rows, embedding_size]` of `token_ids` `[num_tokens] int64`.

        `rows` `[num_rows] int64` are the tokens whose hidden states are wanted; None wants those of all.
        Writes the K and V of every token to the cache behind `attention`.
        """
        hidden = self._embedding[token_ids]
        if self._project_in is not None:
            hidden = self._project_in(hidden)
        hidden = hidden + self._positions[attention.positions + self._offset]
        for layer in self._layers:
            hidden = layer.forward(hidden, attention, rows if layer is self._layers[-1] else None)
        if self._final_norm is not None:
            hidden = self._final_norm(hidden)
        return hidden if self._project_out is None else self._project_out(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `[num_rows, vocab_size]` of hidden states `[num_rows, embedding_size]`."""
        return self._head(hidden)


class _Layer:
    """Attention and feed-forward network, each with its norm and its residual sum."""

    def __init__(
        self, config: LearnedPositionsConfig, tensors: _Tensors, kernels: LayerKernels, layer: int
    ) -> None:
        names, size, inner = config.names, config.hidden_size, config.intermediate_size
        prefix = f"{names.layers}.{layer}"
        self._layer = layer
        self._head_dim = config.head_dim
        self._scale = config.attention_scales[layer]
        self._is_pre_norm = config.is_pre_norm
        self._activation = _activation(config.activation, kernels)
        self._attention_norm = tensors.norm(f"{prefix}.{names.attention_norm}")
        self._mlp_norm = tensors.norm(f"{prefix}.{names.mlp_norm}")
        self._qkv = tensors.linear([f"{prefix}.{name}" for name in names.qkv], 3 * size, size)
        self._output = tensors.linear([f"{prefix}.{names.attention_output}"], size, size)
        self._up = tensors.linear([f"{prefix}.{names.up}"], inner, size)
        self._down = tensors.linear([f"{prefix}.{names.down}"], size, inner)

    def forward(self, hidden: Tensor, attention: StepAttention, rows: Tensor | None) -> Tensor:
        attended = self._attend(self._attention_norm(hidden) if self._is_pre_norm else hidden, attention)
        if rows is not None:
            hidden, attended = hidden[rows], attended[rows]
        hidden = hidden + self._output(attended)
        if self._is_pre_norm:
            return hidden + self._feed_forward(self._mlp_norm(hidden))
        hidden = self._attention_norm(hidden)
        return self._mlp_norm(hidden + self._feed_forward(hidden))

    def _attend(self, hidden: Tensor, attention: StepAttention) -> Tensor:
        q, k, v = (part.view(len(hidden), -1, self._head_dim) for part in self._qkv(hidden).chunk(3, dim=-1))
        return attention.attention(self._layer, q, k, v, scale=self._scale).flatten(-2)

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        return self._down(self._activation(self._up(hidden)))


def _activation(name: str, kernels: LayerKernels) -> Callable[[Tensor], Tensor]:
    return functional.relu if name == "relu" else partial(kernels.apply, _GELUS[name])


class _Tensors:
    """Reads a checkpoint under the names and in the orientation of its family."""

    def __init__(self, config: LearnedPositionsConfig, weights: WeightReader, kernels: LayerKernels) -> None:
        self._config = config
        self._kernels = kernels
        self._weights = weights
        embedding = f"{config.names.embedding}.weight"
        prefixes = config.names.prefixes
        self._prefix = next((prefix for prefix in prefixes if prefix + embedding in weights), prefixes[0])

    def load(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._weights.load(self._prefix + name, shape)

    def norm(self, name: str) -> LayerNorm:
        config = self._config
        if not config.has_norm_weights:
            return LayerNorm(None, None, config.layer_norm_eps, self._kernels)
        weight, bias = (self.load(f"{name}.{part}", (config.hidden_size,)) for part in ("weight", "bias"))
        return LayerNorm(weight, bias, config.layer_norm_eps, self._kernels)

    def linear(
        self, names: Sequence[str], out_size: int, in_size: int, *, has_bias: bool | None = None
    ) -> Linear:
        """Load one linear layer made of several of equal size, their outputs side by side."""
        has_bias = self._config.has_bias if has_bias is None else has_bias
        shape = (out_size // len(names), in_size)
        bias = self._stacked(names, "bias", shape[:1]) if has_bias else None
        layers = [self._prefix + name for name in names]
        if any(map(self._weights.is_quantized, layers)):
            stored = [self._weights.load_quantized(layer, *shape) for layer in layers]
            return make_linear(self._weights, layers[0], stack(stored), bias, self._kernels)
        stored_shape = shape[::-1] if self._config.names.is_transposed else shape
        weight = self._stacked(names, "weight", stored_shape)
        if self._config.names.is_transposed:
            weight = weight.T.contiguous()
        return make_linear(self._weights, layers[0], weight, bias, self._kernels)

    def _stacked(self, names: Sequence[str], part: str, shape: Sequence[int]) -> Tensor:
        full_names = [f"{self._prefix}{name}.{part}" for name in names]
        return self._weights.load_stacked(full_names, [shape] * len(names), self._weights.linear_dtype)


def _load_projections(
    config: LearnedPositionsConfig, tensors: _Tensors
) -> tuple[Linear | None, Linear | None]:
    """Load what joins a narrower token embedding to the hidden states, and back; None where widths agree."""
    inner, outer = config.hidden_size, config.embedding_size
    if inner == outer:
        return None, None
    return (
        tensors.linear(["project_in"], inner, outer, has_bias=False),
        tensors.linear(["project_out"], outer, inner, has_bias=False),
    )
