"""The configuration of BERT and the encoders built like it, whose tokens see their whole prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_core.kv_layout.kv_spec import KVSpec
from baton_engine.checkpoint.model_config import uncached_spec
from baton_engine.models.rope_config import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderNames:
    """Names of a checkpoint's tensors; those of a layer follow `layers` and the layer's number."""

    prefix: str
    """Prefix of every name in checkpoints that hold a head; those of the bare model have none."""
    embedding: str
    embedding_norm: str
    layers: str
    attention_norm: str
    qkv: tuple[str, ...]
    attention_output: str
    mlp_norm: str
    up: tuple[str, ...]
    """Projections into the feed-forward network, side by side."""
    down: str
    positions: str | None = None
    """Table of learned positions; None without one."""
    type_table: str | None = None
    """Table of token types; None without one."""
    final_norm: str | None = None
    """Norm behind the last layer of encoders whose norms come first; None if they come after the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayerConfig:
    """In what the layers of one encoder may differ."""

    window: int | None = None
    """A token sees those at most so many positions away from its own; None sees all of the prompt."""
    rope: RopeConfig | None = None
    """Rotation of queries and keys; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """An encoder of one of the architectures in `encoder_families`."""

    architecture: str
    family: str
    """Name of the architecture without what stands behind the encoder."""
    names: EncoderNames
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    layers: tuple[EncoderLayerConfig, ...]
    activation: str
    is_gated: bool
    is_gate_last: bool = False
    """True if the gate is the second half of the projections into the feed-forward network."""
    norm_eps: float
    has_norm_bias: bool = True
    has_attention_bias: bool = True
    has_up_bias: bool = True
    has_down_bias: bool = True
    num_token_types: int = 0
    num_positions: int = 0
    """Rows of the position table."""
    position_offset: int = 0
    """Row of the position table that belongs to position 0."""
    max_position_embeddings: int
    """Longest prompt in tokens."""
    dtype: str
    """Dtype of the checkpoint, by torch's name."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """No token ends what an encoder makes."""
        return ()

    @property
    def kv_variant(self) -> str:
        """No encoder has a KV cache."""
        return ""

    @property
    def is_causal(self) -> bool:
        """An encoder's tokens see their whole prompt."""
        return False

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """Return blocks that hold next to nothing."""
        return uncached_spec(block_size, dtype)


GATED_ACTIVATIONS: Final = ("gelu", "gelu_pytorch_tanh", "silu")
ACTIVATIONS: Final = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
