"""The configuration of the models that `Decoder` runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from baton_core.kv_layout.kv_spec import KVSpec, group_layers
from baton_engine.checkpoint.model_config import uncached_spec
from baton_engine.models.mixture_config import MixtureConfig
from baton_engine.models.rope_config import RopeConfig

Activation = Literal["silu", "gelu_pytorch_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """In what the layers of one model may differ."""

    window: int | None
    """Number of last tokens that a query sees (itself included); None is all. In a model that is not causal
    it sees those at most so many positions away from its own."""
    rope: RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Grouped-query attention, alike in all layers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor of the scores."""
    softcap: float | None
    """Scores s become `softcap * tanh(s / softcap)`; None leaves them."""
    has_qkv_bias: bool
    has_output_bias: bool
    has_qk_norm: bool
    has_sinks: bool
    """True if each query head has a learned score that joins the softmax of each row without a value."""
    projections: tuple[str, ...]
    """Under which names the files hold the projections to Q, K and V, side by side in this order."""

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardConfig:
    """The gated feed-forward network, alike in all dense layers."""

    intermediate_size: int
    activation: Activation
    has_bias: bool
    projections: tuple[str, ...]
    """Under which names the files hold the projections to gate and up, side by side in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig:
    """RMS norms."""

    eps: float
    is_offset: bool
    """True if the files hold a weight as its distance from 1."""
    is_around: bool
    """True if attention and feed-forward network have a norm after them too, not only before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder-only model of one of the architectures in `decoder_families`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerConfig, ...]
    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    mixture: MixtureConfig | None
    """Experts that stand in for the feed-forward network in some layers."""
    norm: NormConfig
    embedding_scale: float
    """Factor of the token embeddings."""
    logit_softcap: float | None
    """Logits l become `logit_softcap * tanh(l / logit_softcap)`; None leaves them."""
    tie_word_embeddings: bool
    max_position_embeddings: int
    """Longest sequence in tokens."""
    eos_token_ids: tuple[int, ...]
    dtype: str
    """Dtype of the checkpoint, by torch's name."""
    has_head: bool = True
    """False for a model whose hidden states are wanted alone: it has no logits."""
    is_causal: bool = True
    """False if tokens see their whole prompt: such a model has no KV cache."""

    @property
    def kv_variant(self) -> str:
        """Rotation of keys: `longrope` and `dynamic` follow the length that the model is loaded for."""
        return repr(tuple(dict.fromkeys(layer.rope for layer in self.layers)))

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """Return the shape of this model's KV blocks; `dtype` is the cache's dtype by torch's name."""
        if not self.is_causal:
            return uncached_spec(block_size, dtype)
        groups = group_layers([layer.window for layer in self.layers])
        return KVSpec(
            num_layers=max(len(group.layers) for group in groups),
            num_kv_heads=self.attention.num_kv_heads,
            head_dim=self.attention.head_dim,
            block_size=block_size,
            dtype=dtype,
            groups=groups,
        )
