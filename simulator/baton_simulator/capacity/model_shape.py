"""The shape of a decoder, which decides how much a step computes and moves: named or from a config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from baton_core.errors import InvalidConfigError

ITEM_BYTES: Final = 2
"""Bytes of a weight and of an element of the KV cache: bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of equal layers with gated MLPs; with experts, each layer has `num_experts` of them.

    Layers with a window are taken to see all tokens.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    """MLP size of a layer, or of one expert."""
    vocab_size: int
    num_experts: int = 1
    num_active_experts: int = 1
    """Number of experts that compute a token."""

    @property
    def attention_weights(self) -> int:
        """Attention weights of one layer: query, key, value and output."""
        return 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)

    @property
    def expert_weights(self) -> int:
        """Weights of one layer's MLP, or of one expert."""
        return 3 * self.hidden_size * self.mlp_size

    @property
    def num_weights(self) -> int:
        """All weights in memory; embedding and output layer count as two."""
        layer = self.attention_weights + self.num_experts * self.expert_weights
        return self.num_layers * layer + 2 * self.hidden_size * self.vocab_size

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * ITEM_BYTES

    def num_touched_experts(self, num_tokens: int) -> float:
        """Experts of a layer that a step of so many tokens reads, if each token takes any alike."""
        missed = 1 - self.num_active_experts / self.num_experts
        return self.num_experts * (1 - missed**num_tokens)


_SHAPES: Final = (
    ModelShape(
        name="llama-3-8b",
        num_layers=32,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        mlp_size=14336,
        vocab_size=128256,
    ),
    ModelShape(
        name="llama-3-70b",
        num_layers=80,
        hidden_size=8192,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        mlp_size=28672,
        vocab_size=128256,
    ),
    ModelShape(
        name="qwen3-30b-a3b",
        num_layers=48,
        hidden_size=2048,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        mlp_size=768,
        vocab_size=151936,
        num_experts=128,
        num_active_experts=8,
    ),
)
SHAPES: Final = MappingProxyType({shape.name: shape for shape in _SHAPES})
_Size = Annotated[int, msgspec.Meta(ge=1)]


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a config.json that count; other families' names of the same are read before."""

    num_hidden_layers: _Size
    hidden_size: _Size
    num_attention_heads: _Size
    intermediate_size: _Size
    vocab_size: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    moe_intermediate_size: _Size | None = None
    num_experts: _Size | None = None
    num_local_experts: _Size | None = None
    num_experts_per_tok: _Size | None = None
    kv_lora_rank: int | None = None


def read_shape(name: str) -> ModelShape:
    """A named shape, or that of a Hugging Face folder or config.json.

    Raises:
        InvalidConfigError: there is none, or its attention is of another kind.
    """
    if name in SHAPES:
        return SHAPES[name]
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    try:
        raw: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        config = msgspec.convert(raw.get("text_config") or raw, type=_Config)
    except OSError:
        allowed = f"{', '.join(SHAPES)}, or a config.json"
        raise InvalidConfigError(f"model_shape is {name!r}; allowed: {allowed}") from None
    except msgspec.MsgspecError as error:
        raise InvalidConfigError(f"model_shape is {name!r}, which tells no shape: {error}") from None
    if config.kv_lora_rank:
        raise InvalidConfigError(
            f"kv_lora_rank is {config.kv_lora_rank}; allowed: none, for latent attention is not known"
        )
    return _shape(path.parent.name or name, config)


def _shape(name: str, config: _Config) -> ModelShape:
    num_experts = config.num_experts or config.num_local_experts or 1
    return ModelShape(
        name=name,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        mlp_size=(config.moe_intermediate_size if num_experts > 1 else None) or config.intermediate_size,
        vocab_size=config.vocab_size,
        num_experts=num_experts,
        num_active_experts=min(num_experts, config.num_experts_per_tok or 1) if num_experts > 1 else 1,
    )
