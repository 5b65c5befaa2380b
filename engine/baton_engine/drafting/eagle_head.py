"""An EAGLE or EAGLE-3 head: one decoder layer that drafts from hidden states of another model.

Its input is a token and the hidden state of the token before it, so its sequences are one token shorter than
the target's. Its own output stands in for the hidden states of drafted tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_core.worker.speculative_config import SpeculativeMethod
from baton_engine.checkpoint.weight_files import TensorEntry
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.drafting.eagle_config import EagleConfig
from baton_engine.drafting.target_vocabulary import TargetVocabulary
from baton_engine.models.attention import SelfAttention
from baton_engine.models.feed_forward import GatedFeedForward
from baton_engine.models.input_embeds import InputEmbeds
from baton_engine.models.linear import load_head, load_projection
from baton_engine.models.norm import NormLoader, RMSNorm
from baton_engine.models.rope import RotaryEmbedding
from baton_engine.models.step_attention import StepAttention
from baton_engine.models.vocabulary import Embedding
from baton_engine.ranks.ranks import ALONE
from baton_kernels.interface.kernels import LayerKernels

_LAYER: Final = "layers.0"
_EMBEDDING: Final = "embed_tokens.weight"
_SHIFTS: Final = "d2t"
"""Tensor `[draft_vocab_size] int64`: how far a token's number is behind that in the head's vocabulary."""


def has_embedding(tensors: WeightReader | Mapping[str, TensorEntry]) -> bool:
    """True if a head with these tensors, by `head_names`, has token embeddings of its own."""
    return _EMBEDDING in tensors


def head_names(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Return a head's tensors under one set of names, however they are published."""
    return {
        name.removeprefix("model.").replace("midlayer.", f"{_LAYER}."): entry
        for name, entry in entries.items()
    }


class EagleHead:
    """The head as a model: `inputs` has the hidden states for the next pass, `outputs` those of the last one.

    Args:
        weights: of the head's folder, by `head_names`.
        shared: the embedding, and with EAGLE the output head, of its target.
        max_num_rows: rows of a pass whose inputs and outputs keep their places, so that it can be captured.

    Attributes:
        outputs: `[max_num_rows, hidden_size]`, of the rows whose logits were wanted.

    Raises:
        InvalidModelError: the weights do not fit the configuration.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: WeightReader,
        kernels: LayerKernels,
        shared: TargetVocabulary,
        max_num_rows: int,
    ) -> None:
        self.config = config
        self.dtype, self.device = weights.dtype, weights.device
        self.is_capturable = True
        size, eps = config.layer.hidden_size, config.layer.norm.eps
        self._is_third = config.method is SpeculativeMethod.EAGLE3
        self._shared = shared
        self._embedding = _load_embedding(config, weights, kernels, shared)
        norms = NormLoader(weights, kernels, eps, is_offset=False)
        num_parts = len(config.tapped) if config.tapped is not None else 1
        self._fc_norms = _load_fc_norms(config, norms, num_parts)
        wide = num_parts * config.target_hidden_size if self._is_third else 2 * size
        self._fc = load_projection(
            weights, ["fc"], kernels, in_size=wide, out_sizes=[size], has_bias=config.has_fc_bias
        )
        self._embedding_norm: RMSNorm | None = None
        if self._is_third:
            self._embedding_norm = norms.load(f"{_LAYER}.input_layernorm", size)
            self._hidden_norm = norms.load(f"{_LAYER}.hidden_norm", size)
            self._norm = norms.load("norm", size)
            shape = (config.draft_vocab_size, size)
            self._head = load_head(weights, "lm_head", shape, None, kernels)
        self._tokens = _load_tokens(config, weights)
        self._rotary = RotaryEmbedding(config.layer.layers[0].rope, weights.device, kernels)
        self._attention = SelfAttention(
            config.layer.attention,
            weights,
            norms,
            kernels,
            ALONE,
            layer=0,
            hidden_size=size,
            in_size=2 * size if self._is_third else size,
            prefix=f"{_LAYER}.self_attn",
            is_causal=True,
            window=config.layer.layers[0].window,
        )
        self._before_feed_forward = norms.load(f"{_LAYER}.post_attention_layernorm", size)
        self._feed_forward = GatedFeedForward(
            config.layer.feed_forward, weights, kernels, ALONE, hidden_size=size, prefix=f"{_LAYER}.mlp"
        )
        self._inputs = torch.zeros(max_num_rows, size, dtype=self.dtype, device=self.device)
        self._large = self._inputs
        """Inputs of a pass that is too large for these."""

    def combine(self, states: Tensor) -> Tensor:
        """Map the target's hidden states, as `HiddenTaps` has them, to inputs `[num_tokens, hidden_size]`."""
        if not self._is_third:
            return states
        parts = states.chunk(len(self._fc_norms), dim=-1) if self._fc_norms else ()
        if parts:
            states = torch.cat(
                [norm(one.contiguous()) for norm, one in zip(self._fc_norms, parts, strict=True)], dim=-1
            )
        return self._fc(states)

    @property
    def outputs(self) -> Tensor:
        """`[max_num_rows, hidden_size]`: the inputs behind the rows whose logits were wanted last, unless
        there were too many. They are put already: a pass may follow on the tokens behind these rows."""
        return self._inputs

    def put_inputs(self, states: Tensor) -> None:
        """Give the next pass the inputs `[num_tokens, hidden_size]` of its tokens."""
        if len(states) <= len(self._inputs):
            self._inputs[: len(states)].copy_(states)
        else:
            self._large = states

    def forward(
        self,
        token_ids: Tensor,
        attention: StepAttention,
        rows: Tensor | None = None,
        embeds: InputEmbeds | None = None,
    ) -> Tensor:
        """Return the hidden states `[num_rows, hidden_size]` behind `token_ids` `[num_tokens] int64`."""
        is_large = len(token_ids) > len(self._inputs)
        states = self._large if is_large else self._inputs[: len(token_ids)]
        embedded = self._embedding(token_ids)
        if self._embedding_norm is not None:
            normed = self._hidden_norm(states)
            hidden = normed if self.config.is_normed_before_residual else states
            given = torch.cat((self._embedding_norm(embedded), normed), dim=-1)
        else:
            given = hidden = self._fc(torch.cat((embedded, states), dim=-1))
        rotation = self._rotary.cos_sin(attention.positions, self.dtype)
        change = self._attention.forward(given, rotation, attention, rows)
        if rows is not None:
            hidden = hidden[rows]
        given, hidden = self._before_feed_forward.add(change, hidden)
        last = self._feed_forward.forward(given) + hidden
        if len(last) <= len(self._inputs):
            self._inputs[: len(last)].copy_(self._norm(last) if self.config.is_output_normed else last)
        return last

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits `[num_rows, vocab_size]` of the target's tokens: -inf where one cannot be drafted."""
        if not self._is_third:
            assert self._shared.logits is not None, "EAGLE shares it"
            return self._shared.logits(hidden)
        logits = self._head(self._norm(hidden))
        if self._tokens is None:
            return logits
        shape = len(hidden), self.config.layer.vocab_size
        return logits.new_full(shape, float("-inf")).index_copy_(1, self._tokens, logits)


def _load_embedding(
    config: EagleConfig, weights: WeightReader, kernels: LayerKernels, shared: TargetVocabulary
) -> Embedding:
    if has_embedding(weights):
        sizes = config.layer.vocab_size, config.layer.hidden_size
        return Embedding(weights, _EMBEDDING, *sizes, kernels, ALONE)
    if shared.embedding is None or config.layer.hidden_size != config.target_hidden_size:
        raise InvalidModelError(
            f"{weights.folder}: tensor {_EMBEDDING} is missing; allowed: weights that hold it, as "
            f"the target's embeddings have {config.target_hidden_size} numbers"
        )
    return shared.embedding


def _load_fc_norms(config: EagleConfig, norms: NormLoader, num_parts: int) -> tuple[RMSNorm, ...]:
    """Return the norms of equal parts of the target's hidden states."""
    if config.has_fc_norms:
        return tuple(norms.load(f"fc_norm.{part}", config.target_hidden_size) for part in range(num_parts))
    if config.is_normed_before_fc:
        return (norms.load("input_norm", num_parts * config.target_hidden_size),)
    return ()


def _load_tokens(config: EagleConfig, weights: WeightReader) -> Tensor | None:
    """Return the target's tokens that a head can draft, `[draft_vocab_size] int64`; None: all of them."""
    num_tokens = config.draft_vocab_size
    if num_tokens == config.layer.vocab_size:
        return None
    tokens = torch.arange(num_tokens) + weights.load_integers(_SHIFTS, (num_tokens,))
    if not bool(((tokens >= 0) & (tokens < config.layer.vocab_size)).all()):
        raise InvalidModelError(
            f"{weights.folder}: tensor {_SHIFTS} names tokens up to {int(tokens.max())}; "
            f"allowed: 0 to {config.layer.vocab_size - 1}"
        )
    return tokens.to(weights.device)
