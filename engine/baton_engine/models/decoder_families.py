"""In what the architectures that `Decoder` runs differ, beyond what their config.json says.

Defaults are those of Transformers' configuration classes: they hold where config.json is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.models.decoder_config import Activation

_BARE_SUFFIXES: Final = (
    *("ForProcessRewardModel", "ForRewardModel", "ForSequenceClassification", "ForTokenClassification"),
    *("TextForSequenceClassification", "TextModel", "Model"),
)
"""Ends of names of architectures that have another head in the place of that of a language model, or none."""
WindowPattern = Callable[[ConfigFields, int], bool]
"""Says if a layer has a window, where config.json does not list its layers' types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """One architecture, as far as it differs from Llama's."""

    default_num_kv_heads: int | None = None
    """None: as many as query heads."""
    default_head_dim: int | None = None
    """None: hidden size over heads."""
    qkv_bias_key: str | None = None
    """Key that decides whether Q, K and V have a bias."""
    default_qkv_bias: bool = False
    is_output_biased_alike: bool = False
    """True if the output projection has a bias where Q, K and V have."""
    has_mlp_bias_key: bool = False
    has_qk_norm: bool = False
    has_fused_projections: bool = False
    is_partial_rotary_allowed: bool = False
    has_bidirectional_switch: bool = False
    """True if tokens see those behind them, too, where `use_bidirectional_attention` is true."""
    has_sinks: bool = False
    """True if each layer's attention has a learned score for each query head that no value belongs to."""
    default_theta: float = 10_000.0
    default_rope: Mapping[str, Any] | None = None
    """`rope_parameters` where config.json has neither these nor `rope_scaling`."""
    default_original_len: int | None = None
    """`original_max_position_embeddings`, which comes before one in the rope section; None: none."""
    default_eps: float = 1e-6
    default_dtype: str = "float32"
    default_tie: bool = False
    activation_key: str = "hidden_act"
    default_activation: Activation = "silu"

    window_pattern: WindowPattern | None = None
    """None: no layer has a window."""
    has_layer_types: bool = False
    """True if config.json may list its layers' types."""
    has_window_switch: bool = False
    """True if windows hold only where `use_sliding_window` is true."""
    default_window: int | None = None

    default_query_scalar: float | None = None
    """Default of `query_pre_attn_scalar`, whose inverse root scales the scores; None: the head size does."""
    default_attention_softcap: float | None = None
    has_attention_softcap: bool = False
    default_logit_softcap: float | None = None
    has_logit_softcap: bool = False
    is_gemma: bool = False
    """Gemma's norms (offset weights, around both halves of a layer) and scaled embeddings."""
    default_local_theta: float | None = None
    """Base of the layers with a window, under a key of their own; None: that of all layers."""


def _all_layers(fields: ConfigFields, layer: int) -> bool:
    return True


def _from_max_window_layers_on(fields: ConfigFields, layer: int) -> bool:
    return layer >= fields.integer("max_window_layers", 28, minimum=0)


def _even_before_max_window_layers(fields: ConfigFields, layer: int) -> bool:
    return layer % 2 == 0 and layer < fields.integer("max_window_layers", 28, minimum=0)


def _even(fields: ConfigFields, layer: int) -> bool:
    return layer % 2 == 0


def _all_but_each_sixth(fields: ConfigFields, layer: int) -> bool:
    return (layer + 1) % fields.integer("sliding_window_pattern", 6) != 0


_QWEN2: Final = DecoderFamily(
    default_qkv_bias=True,
    window_pattern=_from_max_window_layers_on,
    has_layer_types=True,
    has_window_switch=True,
    default_window=4096,
)
_QWEN3: Final = replace(
    _QWEN2,
    default_head_dim=128,
    qkv_bias_key="attention_bias",
    default_qkv_bias=False,
    is_output_biased_alike=True,
    has_qk_norm=True,
)
_GEMMA2: Final = DecoderFamily(
    default_num_kv_heads=4,
    default_head_dim=256,
    qkv_bias_key="attention_bias",
    is_output_biased_alike=True,
    default_tie=True,
    activation_key="hidden_activation",
    default_activation="gelu_pytorch_tanh",
    window_pattern=_even,
    has_layer_types=True,
    default_window=4096,
    default_query_scalar=256.0,
    has_attention_softcap=True,
    default_attention_softcap=50.0,
    has_logit_softcap=True,
    default_logit_softcap=30.0,
    is_gemma=True,
)

_GPT_OSS: Final = DecoderFamily(
    default_num_kv_heads=8,
    default_head_dim=64,
    qkv_bias_key="attention_bias",
    default_qkv_bias=True,
    is_output_biased_alike=True,
    has_sinks=True,
    default_theta=150_000.0,
    default_rope=MappingProxyType(
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        }
    ),
    default_eps=1e-5,
    default_dtype="bfloat16",  # that of the published weights, whose config.json says nothing
    window_pattern=_even,
    has_layer_types=True,
    default_window=128,
)

DECODER_FAMILIES: Final[dict[str, DecoderFamily]] = {
    "LlamaForCausalLM": DecoderFamily(
        qkv_bias_key="attention_bias", is_output_biased_alike=True, has_mlp_bias_key=True
    ),
    "MistralForCausalLM": DecoderFamily(
        default_num_kv_heads=8, window_pattern=_all_layers, has_layer_types=True, default_window=4096
    ),
    "MixtralForCausalLM": DecoderFamily(
        default_num_kv_heads=8, default_theta=1e6, default_eps=1e-5, window_pattern=_all_layers
    ),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen2MoeForCausalLM": replace(
        _QWEN2, qkv_bias_key="qkv_bias", window_pattern=_even_before_max_window_layers
    ),
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": replace(
        _QWEN3,
        default_num_kv_heads=4,
        default_head_dim=None,
        window_pattern=_all_layers,
        has_layer_types=False,
    ),
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": replace(
        _GEMMA2,
        has_qk_norm=True,
        default_theta=1e6,
        default_local_theta=1e4,
        has_bidirectional_switch=True,
        window_pattern=_all_but_each_sixth,
        has_attention_softcap=False,
        default_attention_softcap=None,
        default_logit_softcap=None,
    ),
    "Phi3ForCausalLM": DecoderFamily(
        has_fused_projections=True,
        is_partial_rotary_allowed=True,
        default_original_len=4096,
        default_eps=1e-5,
        window_pattern=_all_layers,
    ),
    "GptOssForCausalLM": _GPT_OSS,
}


def family_name(architecture: str) -> str | None:
    """Return which of `DECODER_FAMILIES` an architecture is, whatever its head; None: none."""
    if architecture in DECODER_FAMILIES:
        return architecture
    names = (
        f"{architecture.removesuffix(end)}ForCausalLM" for end in _BARE_SUFFIXES if architecture.endswith(end)
    )
    return next((name for name in names if name in DECODER_FAMILIES), None)
