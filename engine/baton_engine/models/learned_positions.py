"""The decoder of GPT-2 and OPT, parameterised by LearnedPositionsConfig.

Positions are a learned table added to the embedding, so a sequence can never be longer than the table.
Called from the engine thread under inference mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.weights import Part, WeightReader
from baton_engine.models.input_embeds import InputEmbeds
from baton_engine.models.learned_positions_config import LearnedPositionsConfig
from baton_engine.models.linear import (
    AnyLinear,
    adapted,
    find_pieces,
    load_bias,
    load_projection,
    make_linear,
    part_of,
    share_to_read,
)
from baton_engine.models.norm import LayerNorm
from baton_engine.models.shares import WHOLE, Layer, Share, load_summed, scaled, share_of_outputs
from baton_engine.models.stage import Stage
from baton_engine.models.step_attention import StepAttention
from baton_engine.models.vocabulary import Embedding, Head
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_kernels.interface.kernels import Function, LayerKernels

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

    def __init__(
        self,
        config: LearnedPositionsConfig,
        weights: WeightReader,
        kernels: LayerKernels,
        ranks: Ranks = ALONE,
    ) -> None:
        tensors = _Tensors(config, weights, kernels, ranks)
        names, size, place = config.names, config.hidden_size, ranks.place
        self.dtype = weights.dtype
        self.device = weights.device
        self.is_capturable = not ranks.place.sizes.is_invariant
        self._config = config
        self._stage = Stage(ranks)
        vocab_size, width, is_tied = config.vocab_size, config.embedding_size, config.tie_word_embeddings
        self.embedding_size = width
        """Width of the embeddings that may stand in the place of tokens."""
        self._embedding: Embedding | None = None
        if place.is_first_stage or (place.is_last_stage and is_tied):
            name = f"{tensors.prefix}{names.embedding}.weight"
            self._embedding = Embedding(weights, name, vocab_size, width, kernels, ranks)
        self._project_in: AnyLinear | None = None
        self._project_out: AnyLinear | None = None
        if place.is_first_stage:
            self._positions = tensors.load_table(f"{names.positions}.weight", (config.num_positions, size))
            if width != size:
                self._project_in = tensors.linear(["project_in"], [size], width, has_bias=False)
        own = place.layers(config.num_layers)
        self._layers = [_Layer(config, tensors, kernels, ranks, layer) for layer in own]
        if place.is_last_stage:
            self._final_norm = tensors.norm(names.final_norm) if config.has_final_norm else None
            if width != size:
                self._project_out = tensors.linear(["project_out"], [width], size, has_bias=False)
            tied = self._embedding if is_tied else None
            if config.has_head:
                self._head = Head(weights, tied, vocab_size, width, kernels, ranks)

    def forward(
        self,
        token_ids: Tensor,
        attention: StepAttention,
        rows: Tensor | None = None,
        embeds: InputEmbeds | None = None,
    ) -> Tensor:
        """Return the final hidden states `[num_rows, embedding_size]` of `token_ids` `[num_tokens] int64`.

        `rows` `[num_rows] int64` are the tokens whose hidden states are wanted; None wants those of all.
        `embeds` stand in the place of embeddings of tokens.
        Writes the K and V of every token to the cache behind `attention`.
        """
        hidden = self._begin(token_ids, attention, embeds)
        for layer in self._layers:
            is_last = self._stage.is_last and layer is self._layers[-1]
            hidden = layer.forward(hidden, attention, rows if is_last else None)
        if not self._stage.is_last:
            return self._stage.hand_on(hidden)
        if self._final_norm is not None:
            hidden = self._final_norm(hidden)
        return hidden if self._project_out is None else self._project_out(hidden)

    def _begin(self, token_ids: Tensor, attention: StepAttention, embeds: InputEmbeds | None) -> Tensor:
        """Return the hidden states before this stage's first layer."""
        if not self._stage.is_first:
            shape = (len(token_ids), self._config.hidden_size)
            (hidden,) = self._stage.take_over(1, shape, self.dtype, self.device)
            return hidden
        assert self._embedding is not None, "the first stage has it"
        hidden = self._embedding(token_ids)
        if embeds is not None:
            hidden = embeds.put(hidden)
        if self._project_in is not None:
            hidden = self._project_in(hidden)
        return hidden + self._positions[attention.positions + self._config.position_offset]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `[num_rows, vocab_size]` of hidden states `[num_rows, embedding_size]`."""
        return self._head(hidden)


class _Layer:
    """Attention and feed-forward network, each with its norm and its residual sum."""

    def __init__(
        self,
        config: LearnedPositionsConfig,
        tensors: _Tensors,
        kernels: LayerKernels,
        ranks: Ranks,
        layer: int,
    ) -> None:
        names, size, inner = config.names, config.hidden_size, config.intermediate_size
        heads, own = scaled(ranks.place.part(config.num_heads), config.head_dim), ranks.place.part(inner)
        prefix = f"{names.layers}.{layer}"
        self._layer = layer
        self._head_dim = config.head_dim
        self._scale = config.attention_scales[layer]
        self._is_pre_norm = config.is_pre_norm
        self._activation = _activation(config.activation, kernels)
        self._attention_norm = tensors.norm(f"{prefix}.{names.attention_norm}")
        self._mlp_norm = tensors.norm(f"{prefix}.{names.mlp_norm}")
        qkv = [f"{prefix}.{name}" for name in names.qkv]
        self._qkv = tensors.linear(qkv, [size] * 3, size, share=share_of_outputs(ranks, heads, heads, heads))
        self._output = tensors.summed(f"{prefix}.{names.attention_output}", size, size, heads)
        self._up = tensors.linear([f"{prefix}.{names.up}"], [inner], size, share=share_of_outputs(ranks, own))
        self._down = tensors.summed(f"{prefix}.{names.down}", size, inner, own)

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

    def __init__(
        self, config: LearnedPositionsConfig, weights: WeightReader, kernels: LayerKernels, ranks: Ranks
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._weights = weights
        self._ranks = ranks
        embedding = f"{config.names.embedding}.weight"
        prefixes = config.names.prefixes
        self.prefix = next((prefix for prefix in prefixes if prefix + embedding in weights), prefixes[0])
        """Prefix of every name but the head's."""

    def load(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._weights.load(self.prefix + name, shape)

    def load_table(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._weights.load_table(self.prefix + name, shape)

    def norm(self, name: str) -> LayerNorm:
        config = self._config
        if not config.has_norm_weights:
            return LayerNorm(None, None, config.layer_norm_eps, self._kernels)
        weight, bias = (self.load(f"{name}.{part}", (config.hidden_size,)) for part in ("weight", "bias"))
        return LayerNorm(weight, bias, config.layer_norm_eps, self._kernels)

    def linear(
        self,
        names: Sequence[str],
        out_sizes: Sequence[int],
        in_size: int,
        *,
        has_bias: bool | None = None,
        share: Share = WHOLE,
    ) -> AnyLinear:
        """Load one linear layer, or a rank's share of it, with outputs of `out_sizes` side by side.

        The files hold it under one name, or in parts under one name for each output.
        """
        weights, layers = self._weights, [self.prefix + name for name in names]
        has_bias = self._config.has_bias if has_bias is None else has_bias
        is_transposed = self._config.names.is_transposed and not weights.is_quantized(layers[0])
        load = _load_transposed if is_transposed else load_projection
        return load(
            *(weights, layers, self._kernels),
            in_size=in_size,
            out_sizes=out_sizes,
            has_bias=has_bias,
            share=share,
        )

    def summed(self, name: str, out_size: int, in_size: int, inputs: range) -> Callable[[Tensor], Tensor]:
        """Load a linear layer of which this rank has the part of these inputs."""

        def load(share: Share, has_bias: bool) -> Layer:
            return self.linear([name], [out_size], in_size, has_bias=has_bias, share=share)

        return load_summed(load, self._ranks, inputs, has_bias=self._config.has_bias)


def _load_transposed(
    weights: WeightReader,
    layers: Sequence[str],
    kernels: LayerKernels,
    *,
    in_size: int,
    out_sizes: Sequence[int],
    has_bias: bool,
    share: Share,
) -> AnyLinear:
    """Load a layer of one name, stored `[in_features, out_features]`, as `load_projection` does."""
    (name,) = layers
    bias = load_bias(weights, find_pieces(layers, out_sizes, share)) if has_bias else None
    read = share_to_read(weights, name, share)
    parts = [part_of(piece, read) for piece in find_pieces(layers, out_sizes, read)]
    stored = [
        weights.load(
            f"{name}.weight",
            (in_size, sum(out_sizes)),
            weights.linear_dtype,
            part and Part(1 - part.axis, part.indices),
        )
        for part in parts
    ]
    weight = torch.cat([one.T for one in stored])
    layer = make_linear(weights, name, weight, bias, kernels, out_sizes=out_sizes, share=share)
    return adapted(weights, layer, layers, kernels, in_size=in_size, out_sizes=out_sizes, share=share)
