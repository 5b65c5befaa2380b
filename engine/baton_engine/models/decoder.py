"""The decoder of Llama and the families built like it, as its DecoderConfig says.

Called from the engine thread under inference mode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.attention import Rotation, SelfAttention
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.feed_forward import FeedForward, GatedFeedForward
from baton_engine.models.hidden_taps import HiddenTaps
from baton_engine.models.input_embeds import InputEmbeds
from baton_engine.models.mixture import MixtureFeedForward
from baton_engine.models.norm import NormLoader, RMSNorm
from baton_engine.models.rope import RotaryEmbedding
from baton_engine.models.stage import Stage
from baton_engine.models.step_attention import StepAttention
from baton_engine.models.vocabulary import Embedding, Head
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_kernels.interface.kernels import LayerKernels


class Decoder:
    """A loaded model: token ids to hidden states, hidden states to logits.

    Attributes:
        taps: where hidden states of all tokens are copied to; None: nowhere.

    Raises:
        InvalidModelError: the folder's weights do not fit the configuration.
    """

    def __init__(
        self, config: DecoderConfig, weights: WeightReader, kernels: LayerKernels, ranks: Ranks = ALONE
    ) -> None:
        self.config = config
        self.dtype = weights.dtype
        self.device = weights.device
        self.taps: HiddenTaps | None = None
        self._stage = Stage(ranks)
        size, is_tied = config.hidden_size, config.tie_word_embeddings
        self.embedding_size = size
        """Width of the embeddings that may stand in the place of tokens."""
        self._embedding: Embedding | None = None
        if ranks.place.is_first_stage or (ranks.place.is_last_stage and is_tied):
            self._embedding = load_embedding(config, weights, kernels, ranks)
        # Rounded to the dtype, as the models were trained with it.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self.dtype).item()
        ropes = list(dict.fromkeys(layer.rope for layer in config.layers))
        self._rotaries = [RotaryEmbedding(rope, weights.device, kernels) for rope in ropes]
        self._rotary_of_layer = [ropes.index(layer.rope) for layer in config.layers]
        norms = NormLoader(weights, kernels, config.norm.eps, is_offset=config.norm.is_offset)
        own = ranks.place.layers(len(config.layers))
        self._numbers = own
        self._layers = [_DecoderLayer(config, weights, kernels, norms, ranks, layer) for layer in own]
        self._rotary_of_layer = self._rotary_of_layer[own.start : own.stop]
        self.is_capturable = not ranks.place.sizes.is_invariant and all(
            layer.is_capturable for layer in self._layers
        )
        if ranks.place.is_last_stage:
            self._norm = norms.load("model.norm", size)
            if config.has_head:
                self._head = load_output_head(config, weights, self._embedding, kernels, ranks)

    @property
    def token_embedding(self) -> Embedding | None:
        """The table of token embeddings, or a rank's rows of it; None at ranks without."""
        return self._embedding

    def forward(
        self,
        token_ids: Tensor,
        attention: StepAttention,
        rows: Tensor | None = None,
        embeds: InputEmbeds | None = None,
    ) -> Tensor:
        """Return the final hidden states `[num_rows, hidden_size]` of `token_ids` `[num_tokens] int64`.

        `rows` `[num_rows] int64` are the tokens whose hidden states are wanted; None wants those of all.
        `embeds` stand in the place of embeddings of tokens.
        Writes the K and V of every token to the cache behind `attention`.
        """
        rotations = [rotary.cos_sin(attention.positions, self.dtype) for rotary in self._rotaries]
        change, hidden = self._begin(token_ids, embeds)
        taps = self.taps
        are_all_wanted = rows is None or (taps is not None and taps.is_final)
        for number, layer, rotary in zip(self._numbers, self._layers, self._rotary_of_layer, strict=True):
            is_last = self._stage.is_last and layer is self._layers[-1]
            wanted = rows if is_last and not are_all_wanted else None
            tap = None if taps is None else partial(taps.take, number)
            change, hidden = layer.forward(change, hidden, rotations[rotary], attention, wanted, tap)
        assert hidden is not None, "a stage has layers"
        if not self._stage.is_last:
            return self._stage.hand_on(*self._tapped_before(self._numbers.stop, len(hidden)), change, hidden)
        normed, _ = self._norm.add(change, hidden)
        if taps is None or not taps.is_final:
            return normed
        taps.take_final(normed)
        return normed if rows is None else normed[rows]

    def _begin(self, token_ids: Tensor, embeds: InputEmbeds | None) -> tuple[Tensor, Tensor | None]:
        """Return the change before this stage's first layer, and the hidden states that it is added to.

        None before the model's first layer: there the change is all there is.
        """
        if not self._stage.is_first:
            shape = (len(token_ids), self.config.hidden_size)
            self._stage.take_into(self._tapped_before(self._numbers.start, len(token_ids)))
            change, hidden = self._stage.take_over(2, shape, self.dtype, self.device)
            return change, hidden
        assert self._embedding is not None, "the first stage has it"
        change = self._embedding(token_ids)
        if self._embedding_scale != 1.0:
            change = change * self._embedding_scale
        return change if embeds is None else embeds.put(change), None

    def _tapped_before(self, layer: int, num_tokens: int) -> list[Tensor]:
        """Return where the states lie that stages before a layer have tapped."""
        return [] if self.taps is None else self.taps.before(layer, num_tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `[num_rows, vocab_size]` of hidden states `[num_rows, hidden_size]`."""
        return self._head(hidden)


class _DecoderLayer:
    """Attention and feed-forward network with their norms and residual sums."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: WeightReader,
        kernels: LayerKernels,
        norms: NormLoader,
        ranks: Ranks,
        layer: int,
    ) -> None:
        prefix, size = f"model.layers.{layer}", config.hidden_size
        self._attention = SelfAttention(
            config.attention,
            weights,
            norms,
            kernels,
            ranks,
            layer=layer,
            hidden_size=size,
            prefix=f"{prefix}.self_attn",
            is_causal=config.is_causal,
            window=config.layers[layer].window,
        )
        self._feed_forward = _load_feed_forward(config, weights, kernels, ranks, layer)
        self.is_capturable = self._feed_forward.is_capturable
        self._before_attention = norms.load(f"{prefix}.input_layernorm", size)
        self._after_attention: RMSNorm | None = None
        self._after_feed_forward: RMSNorm | None = None
        name = "post_attention_layernorm"
        if config.norm.is_around:
            self._after_attention = norms.load(f"{prefix}.post_attention_layernorm", size)
            self._after_feed_forward = norms.load(f"{prefix}.post_feedforward_layernorm", size)
            name = "pre_feedforward_layernorm"
        self._before_feed_forward = norms.load(f"{prefix}.{name}", size)

    def forward(
        self,
        change: Tensor,
        hidden: Tensor | None,
        rotation: Rotation,
        attention: StepAttention,
        rows: Tensor | None = None,
        tap: Callable[[Tensor], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the change that this layer makes last, and the hidden states before it, of `rows` alone.

        `change` is what the layer before made last, not yet added to `hidden`: each norm adds it. `tap` is
        called with their sum, which later operations overwrite.
        """
        normed, hidden = self._before_attention.add(change, hidden)
        if tap is not None:
            tap(hidden)
        change = self._attention.forward(normed, rotation, attention, rows)
        if rows is not None:
            hidden = hidden[rows]
        if self._after_attention is not None:
            change = self._after_attention(change)
        normed, hidden = self._before_feed_forward.add(change, hidden)
        change = self._feed_forward.forward(normed)
        if self._after_feed_forward is not None:
            change = self._after_feed_forward(change)
        return change, hidden


def load_embedding(
    config: DecoderConfig, weights: WeightReader, kernels: LayerKernels, ranks: Ranks
) -> Embedding:
    """Load the token embeddings, or a rank's rows of them."""
    sizes = config.vocab_size, config.hidden_size
    return Embedding(weights, "model.embed_tokens.weight", *sizes, kernels, ranks)


def load_output_head(
    config: DecoderConfig,
    weights: WeightReader,
    embedding: Embedding | None,
    kernels: LayerKernels,
    ranks: Ranks,
) -> Head:
    """Load the output head, or a rank's part of it; `embedding` is the table that it may be tied to."""
    tied = embedding if config.tie_word_embeddings else None
    sizes = config.vocab_size, config.hidden_size
    return Head(weights, tied, *sizes, kernels, ranks, config.logit_softcap)


def _load_feed_forward(
    config: DecoderConfig, weights: WeightReader, kernels: LayerKernels, ranks: Ranks, layer: int
) -> FeedForward:
    prefix = f"model.layers.{layer}"
    if config.mixture is not None and layer in config.mixture.layers:
        return MixtureFeedForward(config.mixture, weights, kernels, prefix, ranks)
    return GatedFeedForward(
        config.feed_forward, weights, kernels, ranks, hidden_size=config.hidden_size, prefix=f"{prefix}.mlp"
    )
