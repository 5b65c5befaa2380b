"""BERT and the encoders built like it, as their EncoderConfig says.

Called from the engine thread under inference mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.encoder_config import EncoderConfig
from baton_engine.models.input_embeds import InputEmbeds
from baton_engine.models.linear import Linear, SideBySide, load_plain_projection
from baton_engine.models.norm import LayerNorm
from baton_engine.models.rope import RotaryEmbedding
from baton_engine.models.step_attention import StepAttention
from baton_kernels.interface.kernels import Function, LayerKernels, rotate

_FUNCTIONS: Final = {
    "gelu": Function.GELU,
    "gelu_new": Function.GELU_TANH,
    "gelu_pytorch_tanh": Function.GELU_TANH,
    "silu": Function.SILU,
}
_Linear = Linear | SideBySide
_Rotation = tuple[Tensor, Tensor]


class Encoder:
    """A loaded model: token ids to hidden states, each of which sees the whole prompt.

    Raises:
        InvalidModelError: the folder's weights do not fit the configuration.
    """

    def __init__(self, config: EncoderConfig, weights: WeightReader, kernels: LayerKernels) -> None:
        self.config = config
        self.dtype = weights.dtype
        self.device = weights.device
        self.is_capturable = False
        tensors, names, size = _Tensors(config, weights, kernels), config.names, config.hidden_size
        self._embedding = tensors.load_table(f"{names.embedding}.weight", (config.vocab_size, size))
        self._positions: Tensor | None = None
        if names.positions is not None:
            self._positions = tensors.load_table(f"{names.positions}.weight", (config.num_positions, size))
        self._token_types: Tensor | None = None
        if names.type_table is not None:
            self._token_types = tensors.load_table(
                f"{names.type_table}.weight", (config.num_token_types, size)
            )
        self._embedding_norm = tensors.norm(names.embedding_norm)
        ropes = list(dict.fromkeys(layer.rope for layer in config.layers))
        self._rotaries = [
            None if rope is None else RotaryEmbedding(rope, self.device, kernels) for rope in ropes
        ]
        self._rotary_of_layer = [ropes.index(layer.rope) for layer in config.layers]
        self._layers = [_Layer(config, tensors, layer) for layer in range(len(config.layers))]
        self._final_norm = None if names.final_norm is None else tensors.norm(names.final_norm)

    def forward(
        self,
        token_ids: Tensor,
        attention: StepAttention,
        rows: Tensor | None = None,
        embeds: InputEmbeds | None = None,
    ) -> Tensor:
        """Return the final hidden states `[num_rows, hidden_size]` of `token_ids` `[num_tokens] int64`.

        `rows` `[num_rows] int64` are the tokens whose hidden states are wanted; None wants those of all.
        Each sequence of the step is a whole prompt; no cache is read or written.
        """
        assert embeds is None, "embeddings in the place of tokens are for models that have an embedding_size"
        hidden = self._embedding_norm(self._embed(token_ids, attention))
        rotations = [
            None if rotary is None else rotary.cos_sin(attention.positions, self.dtype)
            for rotary in self._rotaries
        ]
        for layer, rotary in zip(self._layers, self._rotary_of_layer, strict=True):
            wanted = rows if layer is self._layers[-1] else None
            hidden = layer.forward(hidden, rotations[rotary], attention, wanted)
        return hidden if self._final_norm is None else self._final_norm(hidden)

    def _embed(self, token_ids: Tensor, attention: StepAttention) -> Tensor:
        hidden = self._embedding[token_ids]
        if self._token_types is not None:
            types = attention.token_types
            hidden = hidden + (self._token_types[0] if types is None else self._token_types[types])
        if self._positions is not None:
            hidden = hidden + self._positions[attention.positions + self.config.position_offset]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Raises: ValueError: an encoder has no output head."""
        raise ValueError(f"{self.config.architecture} has no logits; allowed: its hidden states")


class _Layer:
    """Attention and feed-forward network, each with its norm and its residual sum."""

    def __init__(self, config: EncoderConfig, tensors: _Tensors, layer: int) -> None:
        names, size, inner = config.names, config.hidden_size, config.intermediate_size
        prefix = f"{names.layers}.{layer}"
        self._head_dim, self._window = config.head_dim, config.layers[layer].window
        self._is_pre_norm = names.final_norm is not None
        # The embedding's norm is that before the first layer's attention, where norms come first.
        is_first_without = self._is_pre_norm and layer == 0
        self._attention_norm = None if is_first_without else tensors.norm(f"{prefix}.{names.attention_norm}")
        self._mlp_norm = tensors.norm(f"{prefix}.{names.mlp_norm}")
        linear, has_bias = partial(tensors.linear, prefix), config.has_attention_bias
        self._qkv = linear(names.qkv, size, [size] * 3, has_bias=has_bias)
        self._output = linear([names.attention_output], size, [size], has_bias=has_bias)
        up_sizes = [inner] * (2 if config.is_gated else 1)
        self._up = linear(names.up, size, up_sizes, has_bias=config.has_up_bias)
        self._down = linear([names.down], inner, [size], has_bias=config.has_down_bias)
        self._activate = tensors.activated(self._up)

    def forward(
        self,
        hidden: Tensor,
        rotation: _Rotation | None,
        attention: StepAttention,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Map `[num_tokens, hidden_size]` to a new tensor of the same shape, or of `rows` of it alone."""
        normed = hidden
        if self._is_pre_norm and self._attention_norm is not None:
            normed = self._attention_norm(hidden)
        change = self._attend(normed, rotation, attention, rows)
        hidden = (hidden if rows is None else hidden[rows]) + change
        if self._is_pre_norm:
            return hidden + self._down(self._activate(self._mlp_norm(hidden)))
        assert self._attention_norm is not None, "only a first norm before a layer is left out"
        hidden = self._attention_norm(hidden)
        return self._mlp_norm(hidden + self._down(self._activate(hidden)))

    def _attend(
        self, hidden: Tensor, rotation: _Rotation | None, attention: StepAttention, rows: Tensor | None
    ) -> Tensor:
        q, k, v = (part.view(len(hidden), -1, self._head_dim) for part in self._qkv(hidden).chunk(3, dim=-1))
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        attended = attention.bidirectional(q, k, v, scale=self._head_dim**-0.5, window=self._window)
        attended = attended.flatten(-2)
        return self._output(attended if rows is None else attended[rows])


class _Tensors:
    """Reads a checkpoint under the names of its family."""

    def __init__(self, config: EncoderConfig, weights: WeightReader, kernels: LayerKernels) -> None:
        self._config = config
        self._weights = weights
        self._kernels = kernels
        prefix = config.names.prefix
        self._prefix = prefix if f"{prefix}{config.names.embedding}.weight" in weights else ""

    def load(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._weights.load(self._prefix + name, shape)

    def load_table(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._weights.load_table(self._prefix + name, shape)

    def norm(self, name: str) -> LayerNorm:
        size = (self._config.hidden_size,)
        # Files that were converted from TensorFlow have its names.
        is_older = f"{self._prefix}{name}.gamma" in self._weights
        weight_name, bias_name = ("gamma", "beta") if is_older else ("weight", "bias")
        bias = self.load(f"{name}.{bias_name}", size) if self._config.has_norm_bias else None
        weight = self.load(f"{name}.{weight_name}", size)
        return LayerNorm(weight, bias, self._config.norm_eps, self._kernels)

    def linear(
        self, prefix: str, names: Sequence[str], in_size: int, out_sizes: Sequence[int], *, has_bias: bool
    ) -> _Linear:
        layers = [f"{self._prefix}{prefix}.{name}" for name in names]
        return load_plain_projection(
            *(self._weights, layers, self._kernels),
            in_size=in_size,
            out_sizes=out_sizes,
            has_bias=has_bias,
        )

    def activated(self, layer: _Linear) -> Callable[[Tensor], Tensor]:
        """Return the layer into the feed-forward network, followed by its activation or gate."""
        config = self._config
        if config.is_gated and not config.is_gate_last:
            return partial(layer.gated, _FUNCTIONS[config.activation])
        function: Callable[[Tensor], Tensor] = functional.relu
        if config.activation != "relu":
            function = partial(self._kernels.apply, _FUNCTIONS[config.activation])
        if not config.is_gated:
            return lambda hidden: function(layer(hidden))

        def gated(hidden: Tensor) -> Tensor:
            up, gate = layer(hidden).chunk(2, dim=-1)
            return function(gate) * up

        return gated
