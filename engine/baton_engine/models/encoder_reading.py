"""Reads the configuration of the models that `Encoder` runs from a folder's config.json.

Defaults are those of Transformers' configuration classes: they hold where config.json is silent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from baton_engine.checkpoint.config_fields import MAX_HEAD_DIM, MAX_INTEGER, MAX_LAYERS, ConfigFields
from baton_engine.checkpoint.model_config import (
    read_architecture,
    read_checkpoint_dtype,
    read_windowed_layers,
)
from baton_engine.models.encoder_config import (
    ACTIVATIONS,
    GATED_ACTIVATIONS,
    EncoderConfig,
    EncoderLayerConfig,
    EncoderNames,
)
from baton_engine.models.rope_config import RopeReader

HEADS: Final = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
"""Ends of names of architectures that have a head behind the encoder."""
_ENDS: Final = ("Model", *HEADS)
_OTHER_NAMES: Final = {"gelu_python": "gelu", "swish": "silu"}
"""Activations by further names that Transformers has for them."""
_BERT_NAMES: Final = EncoderNames(
    prefix="bert.",
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    type_table="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layers="encoder.layer",
    attention_norm="attention.output.LayerNorm",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention_output="attention.output.dense",
    mlp_norm="output.LayerNorm",
    up=("intermediate.dense",),
    down="output.dense",
)
_MODERNBERT_NAMES: Final = EncoderNames(
    prefix="model.",
    embedding="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    layers="layers",
    attention_norm="attn_norm",
    qkv=("attn.Wqkv",),
    attention_output="attn.Wo",
    mlp_norm="mlp_norm",
    up=("mlp.Wi",),
    down="mlp.Wo",
    final_norm="final_norm",
)
_NOMIC_NAMES: Final = EncoderNames(
    prefix="nomic_bert.",
    embedding="embeddings.word_embeddings",
    type_table="embeddings.token_type_embeddings",
    embedding_norm="emb_ln",
    layers="encoder.layers",
    attention_norm="norm1",
    qkv=("attn.Wqkv",),
    attention_output="attn.out_proj",
    mlp_norm="norm2",
    up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
)
_GTE_NAMES: Final = EncoderNames(
    prefix="gte.",
    embedding="embeddings.word_embeddings",
    type_table="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layers="encoder.layer",
    attention_norm="attn_ln",
    qkv=("attention.qkv_proj",),
    attention_output="attention.o_proj",
    mlp_norm="mlp_ln",
    up=("mlp.up_gate_proj",),
    down="mlp.down_proj",
)
_NOMIC_KEYS: Final = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
"""The model's own names of what Transformers names otherwise."""
_NOMIC_SWITCHES: Final = (
    *("causal", "parallel_block", "prenorm", "use_rms_norm", "rotary_emb_interleaved"),
    *("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"),
)


def read_encoder_config(folder: Path, fields: ConfigFields, max_model_len: int | None) -> EncoderConfig:
    """Read and check a model folder's configuration.

    Raises:
        InvalidModelError: a key is missing, or a value is of the wrong type, contradicts another or asks for
            what the engine does not implement.
    """
    architecture = read_architecture(fields)
    family = next(architecture.removesuffix(end) for end in _ENDS if architecture.endswith(end))
    return _READERS[family](architecture, family, fields, max_model_len)


def _read_bert(
    architecture: str, family: str, fields: ConfigFields, max_model_len: int | None
) -> EncoderConfig:
    for key in ("is_decoder", "add_cross_attention"):
        fields.only(key, False)
    fields.choice("position_embedding_type", ("absolute",), "absolute")
    is_bert = family == "Bert"
    # RoBERTa's positions begin behind the row of its padding token.
    offset = 0 if is_bert else fields.with_default("pad_token_id", 1).integer("pad_token_id", minimum=0) + 1
    num_positions = fields.integer("max_position_embeddings", 512)
    if num_positions <= offset:
        raise fields.refuse("max_position_embeddings", num_positions, f"at least {offset + 1}")
    hidden_size, num_heads = _read_sizes(fields)
    return EncoderConfig(
        architecture=architecture,
        family=family,
        names=_BERT_NAMES if is_bert else replace(_BERT_NAMES, prefix="roberta."),
        vocab_size=fields.integer("vocab_size", 30522 if is_bert else 50265),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 3072),
        num_heads=num_heads,
        layers=(EncoderLayerConfig(),) * fields.integer("num_hidden_layers", 12, maximum=MAX_LAYERS),
        activation=_read_activation(fields, "hidden_act", ACTIVATIONS, "gelu"),
        is_gated=False,
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        num_token_types=fields.integer("type_vocab_size", 2),
        num_positions=num_positions,
        position_offset=offset,
        max_position_embeddings=num_positions - offset,
        dtype=read_checkpoint_dtype(fields),
    )


def _read_modernbert(
    architecture: str, family: str, fields: ConfigFields, max_model_len: int | None
) -> EncoderConfig:
    fields = fields.with_default("max_position_embeddings", 8192)
    hidden_size, num_heads = _read_sizes(fields)
    reader = RopeReader(fields=fields, head_dim=hidden_size // num_heads, max_model_len=max_model_len)
    full, local = (
        reader.read_section(reader.layer_section(name), fields.number(key, default))
        for name, key, default in (
            ("full_attention", "global_rope_theta", 160_000.0),
            ("sliding_attention", "local_rope_theta", 10_000.0),
        )
    )
    window = fields.integer("local_attention", 128, minimum=2) // 2
    return EncoderConfig(
        architecture=architecture,
        family=family,
        names=_MODERNBERT_NAMES,
        vocab_size=fields.integer("vocab_size", 50368),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 1152),
        num_heads=num_heads,
        layers=tuple(
            EncoderLayerConfig(window=window, rope=local) if is_local else EncoderLayerConfig(rope=full)
            for is_local in _read_local_layers(fields)
        ),
        activation=_read_activation(fields, "hidden_activation", GATED_ACTIVATIONS, "gelu"),
        is_gated=True,
        norm_eps=fields.number("norm_eps", 1e-5),
        has_norm_bias=fields.boolean("norm_bias", False),
        has_attention_bias=fields.boolean("attention_bias", False),
        has_up_bias=fields.boolean("mlp_bias", False),
        has_down_bias=fields.boolean("mlp_bias", False),
        max_position_embeddings=reader.trained_len,
        dtype=read_checkpoint_dtype(fields),
    )


def _read_local_layers(fields: ConfigFields) -> list[bool]:
    """Say for each layer whether it has a window."""
    num_layers = fields.integer("num_hidden_layers", 22, maximum=MAX_LAYERS)
    listed = read_windowed_layers(fields, num_layers)
    if listed is not None:
        return listed
    step = fields.integer("global_attn_every_n_layers", 3)
    return [layer % step != 0 for layer in range(num_layers)]


def _read_nomic(
    architecture: str, family: str, fields: ConfigFields, max_model_len: int | None
) -> EncoderConfig:
    own = {name: fields.raw(key) for name, key in _NOMIC_KEYS.items() if fields.raw(name) is None}
    fields = fields.updated({name: value for name, value in own.items() if value is not None})
    fields = fields.with_default("max_position_embeddings", 2048)
    for key in _NOMIC_SWITCHES:
        fields.only(key, False)
    for key, allowed in (("rotary_emb_fraction", 1.0), ("rotary_scaling_factor", 1.0)):
        if fields.raw(key) not in (None, allowed):
            raise fields.refuse(key, fields.raw(key), str(allowed))
    # Longer prompts would change the rotation of all.
    trained = fields.optional_integer("max_trained_positions") or MAX_INTEGER
    fields.choice("activation_function", ("swiglu",), "swiglu")
    hidden_size, num_heads = _read_sizes(fields)
    head_dim = hidden_size // num_heads
    if fields.integer("head_dim", head_dim) != head_dim:
        raise fields.refuse("head_dim", fields.raw("head_dim"), f"{head_dim}, hidden_size over the heads")
    rope = RopeReader(fields=fields, head_dim=head_dim, max_model_len=max_model_len, default_theta=1000.0)
    num_layers = fields.integer("num_hidden_layers", 12, maximum=MAX_LAYERS)
    return EncoderConfig(
        architecture=architecture,
        family=family,
        names=_NOMIC_NAMES,
        vocab_size=fields.integer("vocab_size", 30528),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 3072),
        num_heads=num_heads,
        layers=(EncoderLayerConfig(rope=rope.read()),) * num_layers,
        activation=_read_activation(fields, "hidden_act", GATED_ACTIVATIONS, "silu"),
        is_gated=True,
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        has_attention_bias=False,
        has_up_bias=False,
        has_down_bias=False,
        num_token_types=fields.integer("type_vocab_size", 2),
        max_position_embeddings=min(rope.trained_len, trained),
        dtype=read_checkpoint_dtype(fields),
    )


def _read_gte(
    architecture: str, family: str, fields: ConfigFields, max_model_len: int | None
) -> EncoderConfig:
    fields.choice("position_embedding_type", ("rope",), "rope")
    fields.choice("layer_norm_type", ("layer_norm",), "layer_norm")
    fields.only("logn_attention_scale", False)
    fields = fields.with_default("max_position_embeddings", 8192)
    hidden_size, num_heads = _read_sizes(fields)
    rope = RopeReader(
        fields=fields,
        head_dim=hidden_size // num_heads,
        max_model_len=max_model_len,
        default_theta=160_000.0,
        is_gte=True,
    )
    num_layers = fields.integer("num_hidden_layers", 12, maximum=MAX_LAYERS)
    num_types = fields.integer("type_vocab_size", 1, minimum=0)
    names = replace(_GTE_NAMES, prefix=f"{family.lower()}.")
    return EncoderConfig(
        architecture=architecture,
        family=family,
        names=names if num_types else replace(names, type_table=None),
        vocab_size=fields.integer("vocab_size", 250048),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", 3072),
        num_heads=num_heads,
        layers=(EncoderLayerConfig(rope=rope.read()),) * num_layers,
        activation=_read_activation(fields, "hidden_act", GATED_ACTIVATIONS, "gelu"),
        is_gated=True,
        is_gate_last=True,
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        has_up_bias=False,
        num_token_types=num_types,
        max_position_embeddings=rope.trained_len,
        dtype=read_checkpoint_dtype(fields),
    )


def _read_activation(fields: ConfigFields, key: str, allowed: tuple[str, ...], default: str) -> str:
    name = fields.choice(key, (*allowed, *_OTHER_NAMES), default)
    return _OTHER_NAMES.get(name, name)


def _read_sizes(fields: ConfigFields) -> tuple[int, int]:
    """Return the hidden size and the number of heads, which divides it."""
    hidden_size, num_heads = fields.integer("hidden_size", 768), fields.integer("num_attention_heads", 12)
    if hidden_size % num_heads or hidden_size // num_heads > MAX_HEAD_DIM:
        allowed = f"a divisor of hidden_size ({hidden_size}), with heads of at most {MAX_HEAD_DIM}"
        raise fields.refuse("num_attention_heads", num_heads, allowed)
    return hidden_size, num_heads


_Reader = Callable[[str, str, ConfigFields, int | None], EncoderConfig]
_READERS: Final[dict[str, _Reader]] = {
    "Bert": _read_bert,
    "Roberta": _read_bert,
    "XLMRoberta": _read_bert,
    "Camembert": _read_bert,
    "ModernBert": _read_modernbert,
    "NomicBert": _read_nomic,
    "Gte": _read_gte,
    "New": _read_gte,
}
ARCHITECTURES: Final = tuple(f"{family}{end}" for family in _READERS for end in _ENDS)
