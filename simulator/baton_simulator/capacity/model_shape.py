"""The shape of a decoder, which decides how much a step computes and moves: named or from a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from baton_core.errors import InvalidConfigError, require

ITEM_BYTES: Final = 2
"""Bytes of a weight and of an element of the KV cache: bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of layers with gated MLPs, which may be experts; all have the same attention.

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
    shared_mlp_size: int = 0
    """Size of the shared experts of a layer, which compute every token."""
    num_dense_layers: int = 0
    """Layers without experts in a model that has them."""
    dense_mlp_size: int = 0
    """MLP size of such a layer."""

    @property
    def attention_weights(self) -> int:
        """Attention weights of one layer: query, key, value and output."""
        return 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)

    def layer_weights(self, num_experts: float) -> float:
        """Weights of all layers together, with so many experts of each layer that has some."""
        mlp_size = num_experts * self.mlp_size + self.shared_mlp_size
        mlp_sizes = (self.num_layers - self.num_dense_layers) * mlp_size
        mlp_sizes += self.num_dense_layers * self.dense_mlp_size
        return self.num_layers * self.attention_weights + 3 * self.hidden_size * mlp_sizes

    @property
    def num_weights(self) -> int:
        """All weights in memory; embedding and output layer count as two."""
        return int(self.layer_weights(self.num_experts)) + 2 * self.hidden_size * self.vocab_size

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
_Count = Annotated[int, msgspec.Meta(ge=0)]
_One = Annotated[int, msgspec.Meta(ge=1, le=1)]
_ALIASES: Final = MappingProxyType(
    {
        "num_local_experts": "num_experts",
        "n_routed_experts": "num_experts",
        "moe_num_experts": "num_experts",
        "experts_per_token": "num_experts_per_tok",
        "moe_k": "num_experts_per_tok",
        "n_shared_experts": "num_shared_experts",
        "moe_num_shared_experts": "num_shared_experts",
        "shared_intermediate_size": "shared_expert_intermediate_size",
        "moe_layer_start_index": "first_k_dense_replace",
        "num_dense_layers": "first_k_dense_replace",
    }
)
"""Other families' names of the fields that are read."""
_UNGATED: Final = frozenset(
    {
        "apertus",
        "arcee",
        "biogpt",
        "gpt_neox",
        "jais2",
        "nanochat",
        "nemotron",
        "persimmon",
        "phi",
        "starcoder2",
    }
)
"""Model types whose MLPs are two matrices."""
_ATTENTION: Final = ("full_attention", "sliding_attention", "chunked_attention")
_UNKNOWN: Final = ("full_attention_interval", "interleave_moe_layer_step", "mamba_", "linear_num_")
"""Beginnings of the fields of models whose layers differ in ways that are not known."""


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a config.json that count, by the names that `_ALIASES` gives them."""

    model_type: str = ""
    num_hidden_layers: _Size
    hidden_size: _Size
    num_attention_heads: _Size
    intermediate_size: _Size
    vocab_size: _Size
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    kv_lora_rank: int = 0
    layer_types: list[str] = []
    num_experts: _Count = 0
    num_experts_per_tok: _Count = 0
    moe_intermediate_size: _Size | None = None
    num_shared_experts: _Count = 0
    shared_expert_intermediate_size: _Count = 0
    first_k_dense_replace: _Count = 0
    mlp_only_layers: list[int] = []
    decoder_sparse_step: _One = 1
    moe_layer_freq: _One = 1
    moe_layer_interval: _One = 1


def read_shape(name: str) -> ModelShape:
    """A named shape, or that of a Hugging Face folder or config.json.

    Raises:
        InvalidConfigError: there is none, or its layers are of another kind.
    """
    if name in SHAPES:
        return SHAPES[name]
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    try:
        raw: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        given = {key: value for key, value in (raw.get("text_config") or raw).items() if value is not None}
        config = msgspec.convert(
            {_ALIASES.get(key, key): value for key, value in given.items()}, type=_Config
        )
    except OSError:
        allowed = f"{', '.join(SHAPES)}, or a config.json"
        raise InvalidConfigError(f"model_shape is {name!r}; allowed: {allowed}") from None
    except msgspec.MsgspecError as error:
        raise InvalidConfigError(f"model_shape is {name!r}, which tells no shape: {error}") from None
    _require_known(given, config)
    return _shape(path.parent.name or name, config)


def _require_known(given: Mapping[str, Any], config: _Config) -> None:
    """Refuse what the shape would count wrongly."""
    latent = "none, for latent attention is not known"
    require("kv_lora_rank", config.kv_lora_rank, not config.kv_lora_rank, latent)
    require("model_type", config.model_type, config.model_type not in _UNGATED, "those with gated MLPs")
    for kind in config.layer_types:
        require("layer_types", kind, kind in _ATTENTION, ", ".join(_ATTENTION))
    has_choice = config.num_experts <= 1 or config.num_experts_per_tok > 0
    require("num_experts_per_tok", config.num_experts_per_tok, has_choice, "over 0 where there are experts")
    for key in sorted(given.keys() - set(config.__struct_fields__) - _ALIASES.keys()):
        value = given[key]
        is_of_experts = "expert" in key and isinstance(value, int | list) and not isinstance(value, bool)
        is_known = not (value and is_of_experts) and not key.startswith(_UNKNOWN)
        require(key, value, is_known, "nothing, for layers of this kind are not known")


def _shape(name: str, config: _Config) -> ModelShape:
    shape = ModelShape(
        name=name,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        mlp_size=config.intermediate_size,
        vocab_size=config.vocab_size,
    )
    if config.num_experts <= 1:
        return shape
    mlp_size = config.moe_intermediate_size or config.intermediate_size
    num_dense_layers = config.first_k_dense_replace or len(config.mlp_only_layers)
    return replace(
        shape,
        mlp_size=mlp_size,
        num_experts=config.num_experts,
        num_active_experts=min(config.num_experts, config.num_experts_per_tok),
        shared_mlp_size=config.shared_expert_intermediate_size or config.num_shared_experts * mlp_size,
        num_dense_layers=min(num_dense_layers, config.num_hidden_layers),
        dense_mlp_size=config.intermediate_size,
    )
