"""The configuration of GPT-2 and OPT: learned positions, layer norms, one plain feed-forward network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from baton_core.kv_layout.kv_spec import KVSpec
from baton_engine.checkpoint.config_fields import MAX_HEAD_DIM, MAX_LAYERS, ConfigFields
from baton_engine.checkpoint.model_config import (
    read_architecture,
    read_checkpoint_dtype,
    read_eos_token_ids,
)

_GPT2: Final = ("GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification")
_OPT: Final = ("OPTForCausalLM", "OPTModel", "OPTForSequenceClassification")
"""The language model first; the others have no head, or another one in its place."""
ARCHITECTURES: Final = (*_GPT2, *_OPT)
_GPT2_KEYS: Final = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}
"""GPT-2's own names of keys, and the usual ones, which come before them as in Transformers."""
ACTIVATIONS: Final = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Names of a checkpoint's tensors; those of a layer follow `layers` and the layer's number."""

    prefixes: tuple[str, ...]
    """Prefixes of every name but the head's: checkpoints of the bare model have shorter ones."""
    embedding: str
    positions: str
    layers: str
    attention_norm: str
    qkv: tuple[str, ...]
    attention_output: str
    mlp_norm: str
    up: str
    down: str
    final_norm: str
    is_transposed: bool
    """True if linear layers are stored `[in_features, out_features]`."""


_GPT2_NAMES: Final = WeightNames(
    prefixes=("transformer.", ""),
    embedding="wte",
    positions="wpe",
    layers="h",
    attention_norm="ln_1",
    qkv=("attn.c_attn",),
    attention_output="attn.c_proj",
    mlp_norm="ln_2",
    up="mlp.c_fc",
    down="mlp.c_proj",
    final_norm="ln_f",
    is_transposed=True,
)
_OPT_NAMES: Final = WeightNames(
    prefixes=("model.decoder.", "decoder."),
    embedding="embed_tokens",
    positions="embed_positions",
    layers="layers",
    attention_norm="self_attn_layer_norm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.out_proj",
    mlp_norm="final_layer_norm",
    up="fc1",
    down="fc2",
    final_norm="final_layer_norm",
    is_transposed=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPositionsConfig:
    """A model of one of the families in `ARCHITECTURES`."""

    architecture: str
    names: WeightNames
    vocab_size: int
    embedding_size: int
    """Width of the token embedding; where it is not `hidden_size`, two projections join them."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    activation: str
    layer_norm_eps: float
    is_pre_norm: bool
    """True if norms stand before attention and feed-forward, False if after their residual sums."""
    has_final_norm: bool
    has_norm_weights: bool
    has_bias: bool
    attention_scales: tuple[float, ...]
    """Factor of the attention scores, for each layer."""
    num_positions: int
    """Rows of the position table."""
    position_offset: int
    """Row of the position table that belongs to position 0."""
    tie_word_embeddings: bool
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    """Dtype of the checkpoint, by torch's name."""
    kv_variant: str = ""
    has_head: bool = True
    """As `DecoderConfig.has_head`."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def attention_modules(self) -> tuple[str, ...]:
        """Names that the modules of attention may have, `{}` for the layer's number."""
        names = self.names
        module = names.qkv[0].rpartition(".")[0]
        return tuple(f"{prefix}{names.layers}.{{}}.{module}" for prefix in names.prefixes)

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """Return the shape of this model's KV blocks; `dtype` is the cache's dtype by torch's name."""
        return KVSpec(
            num_layers=self.num_layers,
            num_kv_heads=self.num_heads,
            head_dim=self.head_dim,
            block_size=block_size,
            dtype=dtype,
        )


def read_learned_positions_config(
    folder: Path, fields: ConfigFields, max_model_len: int | None = None
) -> LearnedPositionsConfig:
    """Read and check a model folder's configuration.

    Raises:
        InvalidModelError: a file or key is missing, or a value is of the wrong type, contradicts another or
            asks for what the engine does not implement.
    """
    architecture = read_architecture(fields)
    fields.only("is_causal", True)
    read = _read_gpt2 if architecture in _GPT2 else _read_opt
    return replace(
        read(folder, fields), architecture=architecture, has_head=architecture in (_GPT2[0], _OPT[0])
    )


def _read_gpt2(folder: Path, fields: ConfigFields) -> LearnedPositionsConfig:
    keys = {own: own if fields.raw(key) is None else key for own, key in _GPT2_KEYS.items()}
    fields.only("add_cross_attention", False)
    hidden_size = fields.integer(keys["n_embd"], 768)
    num_layers = fields.integer(keys["n_layer"], 12, maximum=MAX_LAYERS)
    num_heads = _read_num_heads(fields, keys["n_head"], keys["n_embd"], hidden_size)
    scale = (hidden_size // num_heads) ** -0.5 if fields.boolean("scale_attn_weights", True) else 1.0
    is_scaled_by_layer = fields.boolean("scale_attn_by_inverse_layer_idx", False)
    return LearnedPositionsConfig(
        architecture=_GPT2[0],
        names=_GPT2_NAMES,
        vocab_size=fields.integer("vocab_size", 50257),
        embedding_size=hidden_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("n_inner", 4 * hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        layer_norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        is_pre_norm=True,
        has_final_norm=True,
        has_norm_weights=True,
        has_bias=True,
        attention_scales=tuple(scale / (i + 1 if is_scaled_by_layer else 1) for i in range(num_layers)),
        num_positions=fields.integer(keys["n_positions"], 1024),
        position_offset=0,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", True),
        max_position_embeddings=fields.integer(keys["n_positions"], 1024),
        eos_token_ids=read_eos_token_ids(folder, fields),
        dtype=read_checkpoint_dtype(fields),
    )


def _read_opt(folder: Path, fields: ConfigFields) -> LearnedPositionsConfig:
    hidden_size = fields.integer("hidden_size", 768)
    num_layers = fields.integer("num_hidden_layers", 12, maximum=MAX_LAYERS)
    num_heads = _read_num_heads(fields, "num_attention_heads", "hidden_size", hidden_size)
    is_pre_norm = fields.boolean("do_layer_norm_before", True)
    return LearnedPositionsConfig(
        architecture=_OPT[0],
        names=_OPT_NAMES,
        vocab_size=fields.integer("vocab_size", 50272),
        embedding_size=fields.integer("word_embed_proj_dim", hidden_size),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("ffn_dim", 3072),
        num_layers=num_layers,
        num_heads=num_heads,
        activation=fields.choice("activation_function", ACTIVATIONS, "relu"),
        layer_norm_eps=1e-5,
        is_pre_norm=is_pre_norm,
        has_final_norm=is_pre_norm and not fields.boolean("_remove_final_layer_norm", False),
        has_norm_weights=fields.boolean("layer_norm_elementwise_affine", True),
        has_bias=fields.boolean("enable_bias", True),
        attention_scales=((hidden_size // num_heads) ** -0.5,) * num_layers,
        num_positions=fields.integer("max_position_embeddings", 2048) + 2,
        position_offset=2,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", True),
        max_position_embeddings=fields.integer("max_position_embeddings", 2048),
        eos_token_ids=read_eos_token_ids(folder, fields),
        dtype=read_checkpoint_dtype(fields),
    )


def _read_num_heads(fields: ConfigFields, key: str, size_key: str, hidden_size: int) -> int:
    num_heads = fields.integer(key, 12)
    if hidden_size % num_heads:
        raise fields.refuse(key, num_heads, f"a divisor of {size_key} ({hidden_size})")
    if hidden_size // num_heads > MAX_HEAD_DIM:
        raise fields.refuse(
            key, num_heads, f"heads of at most {MAX_HEAD_DIM} out of {size_key} ({hidden_size})"
        )
    return num_heads
