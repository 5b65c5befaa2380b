"""Reads the configuration of the models that `Decoder` runs from a folder's config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from baton_engine.checkpoint.config_fields import MAX_HEAD_DIM, MAX_LAYERS, ConfigFields
from baton_engine.checkpoint.model_config import (
    read_architecture,
    read_checkpoint_dtype,
    read_eos_token_ids,
    read_windowed_layers,
)
from baton_engine.models.decoder_config import (
    Activation,
    AttentionConfig,
    DecoderConfig,
    FeedForwardConfig,
    LayerConfig,
    NormConfig,
)
from baton_engine.models.decoder_families import DECODER_FAMILIES, DecoderFamily, family_name
from baton_engine.models.mixture_config import read_mixture_config
from baton_engine.models.rope_config import RopeConfig, RopeReader

ARCHITECTURES: Final = tuple(DECODER_FAMILIES)
_ROPE_KEYS: Final = ("rope_parameters", "rope_scaling")


def read_decoder_config(folder: Path, fields: ConfigFields, max_model_len: int | None) -> DecoderConfig:
    """Read and check a model folder's configuration, for sequences of at most `max_model_len` tokens.

    Raises:
        InvalidModelError: a key is missing, or a value is of the wrong type, contradicts another or asks for
            what the engine does not implement.
    """
    architecture = read_architecture(fields)
    name = family_name(architecture)
    assert name is not None, "the registry found it"
    family = DECODER_FAMILIES[name]
    if family.default_rope is not None and all(fields.raw(key) is None for key in _ROPE_KEYS):
        fields = fields.updated({"rope_parameters": dict(family.default_rope)})
    if family.default_original_len is not None:
        fields = fields.with_default("original_max_position_embeddings", family.default_original_len)
    hidden_size = fields.integer("hidden_size")
    attention = _read_attention(fields, family, hidden_size)
    reader = RopeReader(
        fields=fields,
        head_dim=attention.head_dim,
        max_model_len=max_model_len,
        default_theta=family.default_theta,
        is_partial_allowed=family.is_partial_rotary_allowed,
        is_phi3=name == "Phi3ForCausalLM",
        is_by_layer_type=family.default_local_theta is not None,
    )
    layers = _read_layers(fields, family, reader)
    mixture = read_mixture_config(name, fields, len(layers))
    return DecoderConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        layers=layers,
        attention=attention,
        feed_forward=_read_feed_forward(fields, family, mixture is not None),
        mixture=mixture,
        norm=NormConfig(
            eps=fields.number("rms_norm_eps", family.default_eps),
            is_offset=family.is_gemma,
            is_around=family.is_gemma,
        ),
        embedding_scale=hidden_size**0.5 if family.is_gemma else 1.0,
        logit_softcap=_read_softcap(
            fields, "final_logit_softcapping", family.has_logit_softcap, family.default_logit_softcap
        ),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", family.default_tie),
        max_position_embeddings=reader.longest_len,
        eos_token_ids=read_eos_token_ids(folder, fields),
        dtype=read_checkpoint_dtype(fields, family.default_dtype),
        has_head=architecture == name,
        is_causal=_read_is_causal(fields, family, attention),
    )


def _read_is_causal(fields: ConfigFields, family: DecoderFamily, attention: AttentionConfig) -> bool:
    is_causal = fields.boolean("is_causal", True)
    if fields.boolean("use_bidirectional_attention", False):
        if not family.has_bidirectional_switch:
            raise fields.refuse("use_bidirectional_attention", True, "false")
        is_causal = False
    if not is_causal and (attention.softcap is not None or attention.has_sinks):
        raise fields.refuse("is_causal", False, "true with soft caps or attention sinks")
    return is_causal


def _read_attention(fields: ConfigFields, family: DecoderFamily, hidden_size: int) -> AttentionConfig:
    num_heads = fields.integer("num_attention_heads")
    head_dim = _read_head_dim(fields, family, hidden_size, num_heads)
    has_bias = family.default_qkv_bias
    if family.qkv_bias_key is not None:
        has_bias = fields.boolean(family.qkv_bias_key, has_bias)
    query_scalar: float = head_dim
    if family.default_query_scalar is not None:
        query_scalar = fields.number("query_pre_attn_scalar", family.default_query_scalar)
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=_read_num_kv_heads(fields, family, num_heads),
        head_dim=head_dim,
        scale=query_scalar**-0.5,
        softcap=_read_softcap(
            fields, "attn_logit_softcapping", family.has_attention_softcap, family.default_attention_softcap
        ),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias and family.is_output_biased_alike,
        has_qk_norm=family.has_qk_norm,
        has_sinks=family.has_sinks,
        projections=("qkv_proj",) if family.has_fused_projections else ("q_proj", "k_proj", "v_proj"),
    )


def _read_num_kv_heads(fields: ConfigFields, family: DecoderFamily, num_heads: int) -> int:
    default = num_heads if family.default_num_kv_heads is None else family.default_num_kv_heads
    value = fields.with_default("num_key_value_heads", default).integer("num_key_value_heads", num_heads)
    if num_heads % value:
        raise fields.refuse("num_key_value_heads", value, f"a divisor of num_attention_heads ({num_heads})")
    return value


def _read_head_dim(fields: ConfigFields, family: DecoderFamily, hidden_size: int, num_heads: int) -> int:
    explicit = fields.optional_integer("head_dim", maximum=MAX_HEAD_DIM) or family.default_head_dim
    if explicit is None and hidden_size % num_heads:
        raise fields.refuse(
            "hidden_size",
            hidden_size,
            f"a multiple of num_attention_heads ({num_heads}) where head_dim is absent",
        )
    head_dim = explicit or hidden_size // num_heads
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        allowed = f"an even number, which rotary embeddings need, of at most {MAX_HEAD_DIM}"
        raise fields.refuse("head_dim", head_dim, allowed)
    return head_dim


def _read_softcap(fields: ConfigFields, key: str, is_known: bool, default: float | None) -> float | None:
    if not is_known:
        if fields.raw(key) is not None:
            raise fields.refuse(key, fields.raw(key), "null")
        return None
    return fields.with_default(key, default).optional_number(key)


def _read_feed_forward(fields: ConfigFields, family: DecoderFamily, has_experts: bool) -> FeedForwardConfig:
    allowed: dict[str, Activation] = {"silu": "silu", "swish": "silu"}
    if not has_experts:
        allowed["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    activation = fields.choice(family.activation_key, tuple(allowed), family.default_activation)
    return FeedForwardConfig(
        intermediate_size=fields.integer("intermediate_size"),
        activation=allowed[activation],
        has_bias=family.has_mlp_bias_key and fields.boolean("mlp_bias", False),
        projections=("gate_up_proj",) if family.has_fused_projections else ("gate_proj", "up_proj"),
    )


def _read_layers(fields: ConfigFields, family: DecoderFamily, reader: RopeReader) -> tuple[LayerConfig, ...]:
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    window = _read_window(fields, family)
    if window is not None and window >= reader.longest_len:
        window = None
    full, windowed = _read_ropes(fields, family, reader)
    return tuple(
        LayerConfig(window=window, rope=windowed) if is_windowed else LayerConfig(window=None, rope=full)
        for is_windowed in _read_layer_types(fields, family, num_layers)
    )


def _read_window(fields: ConfigFields, family: DecoderFamily) -> int | None:
    if family.window_pattern is None:
        return None
    if family.has_window_switch and not fields.boolean("use_sliding_window", False):
        return None
    window = fields.with_default("sliding_window", family.default_window).optional_integer("sliding_window")
    if window is None:
        return None
    return window // 2 if fields.boolean("use_bidirectional_attention", False) else window


def _read_layer_types(fields: ConfigFields, family: DecoderFamily, num_layers: int) -> list[bool]:
    """Say for each layer whether it has a window."""
    listed = read_windowed_layers(fields, num_layers) if family.has_layer_types else None
    if listed is not None:
        return listed
    pattern = family.window_pattern
    return [pattern is not None and pattern(fields, layer) for layer in range(num_layers)]


def _read_ropes(
    fields: ConfigFields, family: DecoderFamily, reader: RopeReader
) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotary embeddings of layers without and with a window."""
    if family.default_local_theta is None:
        rope = reader.read()
        return rope, rope
    theta = fields.number("rope_theta", family.default_theta)
    local_theta = fields.number("rope_local_base_freq", family.default_local_theta)
    return (
        reader.read_section(reader.layer_section("full_attention"), theta),
        reader.read_section(reader.layer_section("sliding_attention", is_scaled=False), local_theta),
    )
