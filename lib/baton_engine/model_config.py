"""What the engine needs to know of a model, read from its folder's config.json and generation_config.json.

Both spellings of Transformers are read: `rope_parameters` and `dtype`, and the older `rope_theta`,
`rope_scaling` and `torch_dtype`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from baton_core.kv_spec import KVSpec, group_layers
from baton_engine.config_fields import ConfigFields, read_json_object

_DTYPES: Final = ("float32", "bfloat16", "float16")
_LAYER_TYPES: Final = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """Rotary embedding: the base, and how its frequencies are scaled to a longer context."""

    rope_type: Literal["default", "linear", "llama3"]
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only model of one of the families in `ARCHITECTURES`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeParameters
    tie_word_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    layer_windows: tuple[int | None, ...]
    """For each layer, how many of the last tokens a query sees (itself included); None is all."""
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    """Element type of the checkpoint, by torch's name."""

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """Return the shape of this model's KV blocks; `dtype` is the cache's element type by torch's name."""
        groups = group_layers(self.layer_windows)
        return KVSpec(
            num_layers=max(len(group.layers) for group in groups),
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=block_size,
            dtype=dtype,
            groups=groups,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """In what one architecture differs from Llama."""

    has_qkv_bias: bool | None = None
    """None: the key `attention_bias` decides, for the output projection too."""
    has_mlp_bias_key: bool = False
    has_qk_norm: bool = False
    head_dim: int | None = None
    """Head size where the config is silent; None: hidden size over heads."""
    windows: Literal["none", "all_layers", "by_layer"] = "none"


_FAMILIES: Final[dict[str, _Family]] = {
    "LlamaForCausalLM": _Family(has_mlp_bias_key=True),
    "MistralForCausalLM": _Family(has_qkv_bias=False, windows="all_layers"),
    "Qwen2ForCausalLM": _Family(has_qkv_bias=True, windows="by_layer"),
    "Qwen3ForCausalLM": _Family(has_qk_norm=True, head_dim=128, windows="by_layer"),
}
ARCHITECTURES: Final = tuple(_FAMILIES)


def read_model_config(folder: Path) -> ModelConfig:
    """Read and check a model folder's configuration.

    Raises:
        InvalidModelError: a file or key is missing, or a value is of the wrong type, contradicts another or
            asks for what the engine does not implement.
    """
    fields = ConfigFields.from_file(folder / "config.json")
    architecture = _read_architecture(fields)
    family = _FAMILIES[architecture]
    _refuse_unsupported(fields)
    hidden_size = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers")
    num_heads = fields.integer("num_attention_heads")
    max_position_embeddings = fields.integer("max_position_embeddings")
    has_bias = fields.boolean("attention_bias", False) if family.has_qkv_bias is None else family.has_qkv_bias
    generation = _read_generation_config(folder)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_read_num_kv_heads(fields, num_heads),
        head_dim=_read_head_dim(fields, family, hidden_size, num_heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_read_rope(fields, max_position_embeddings),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias and family.has_qkv_bias is None,
        has_mlp_bias=family.has_mlp_bias_key and fields.boolean("mlp_bias", False),
        has_qk_norm=family.has_qk_norm,
        layer_windows=_read_windows(fields, family, num_layers),
        max_position_embeddings=max_position_embeddings,
        eos_token_ids=tuple(
            dict.fromkeys(fields.token_ids("eos_token_id") + generation.token_ids("eos_token_id"))
        ),
        dtype=fields.choice(
            "dtype" if fields.raw("dtype") is not None else "torch_dtype", _DTYPES, "float32"
        ),
    )


def _read_architecture(fields: ConfigFields) -> str:
    value = fields.raw("architectures")
    name = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(name, str) or name not in _FAMILIES:
        raise fields.refuse("architectures", value, "one of " + ", ".join(ARCHITECTURES))
    return name


def _refuse_unsupported(fields: ConfigFields) -> None:
    if fields.raw("quantization_config") is not None:
        raise fields.refuse("quantization_config", fields.raw("quantization_config"), "unquantized weights")
    fields.choice("hidden_act", ("silu",), "silu")


def _read_num_kv_heads(fields: ConfigFields, num_heads: int) -> int:
    value = fields.integer("num_key_value_heads", num_heads)
    if num_heads % value:
        raise fields.refuse("num_key_value_heads", value, f"a divisor of num_attention_heads ({num_heads})")
    return value


def _read_head_dim(fields: ConfigFields, family: _Family, hidden_size: int, num_heads: int) -> int:
    explicit = fields.optional_integer("head_dim") or family.head_dim
    if explicit is None and hidden_size % num_heads:
        raise fields.refuse(
            "hidden_size",
            hidden_size,
            f"a multiple of num_attention_heads ({num_heads}) where head_dim is absent",
        )
    head_dim = explicit or hidden_size // num_heads
    if head_dim % 2:
        raise fields.refuse("head_dim", head_dim, "an even number, which rotary embeddings need")
    return head_dim


def _read_rope(fields: ConfigFields, max_position_embeddings: int) -> RopeParameters:
    rope = fields.section("rope_parameters") or fields.section("rope_scaling") or ConfigFields("", {})
    theta = rope.number("rope_theta", fields.number("rope_theta", 10_000.0))
    for holder in (fields, rope):
        if holder.raw("partial_rotary_factor") not in (None, 1, 1.0):
            raise holder.refuse("partial_rotary_factor", holder.raw("partial_rotary_factor"), "1.0")
    key = "rope_type" if rope.raw("rope_type") is not None else "type"
    match rope.choice(key, ("default", "linear", "llama3"), "default"):
        case "linear":
            return RopeParameters(rope_type="linear", theta=theta, factor=rope.number("factor"))
        case "llama3":
            return _read_llama3_rope(rope, theta, max_position_embeddings)
        case _:
            return RopeParameters(rope_type="default", theta=theta)


def _read_llama3_rope(rope: ConfigFields, theta: float, max_position_embeddings: int) -> RopeParameters:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.refuse("high_freq_factor", high, f"a number above low_freq_factor ({low})")
    return RopeParameters(
        rope_type="llama3",
        theta=theta,
        factor=rope.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=rope.integer(
            "original_max_position_embeddings", max_position_embeddings
        ),
    )


def _read_windows(fields: ConfigFields, family: _Family, num_layers: int) -> tuple[int | None, ...]:
    window = fields.optional_integer("sliding_window")
    if family.windows == "by_layer" and not fields.boolean("use_sliding_window", False):
        window = None
    if family.windows == "none" or window is None:
        return (None,) * num_layers
    if family.windows == "all_layers":
        return (window,) * num_layers
    return tuple(window if name == "sliding_attention" else None for name in _layer_types(fields, num_layers))


def _layer_types(fields: ConfigFields, num_layers: int) -> list[str]:
    names: Any = fields.raw("layer_types")
    if names is None:
        num_full = min(fields.integer("max_window_layers", 28, minimum=0), num_layers)
        return ["full_attention"] * num_full + ["sliding_attention"] * (num_layers - num_full)
    if not isinstance(names, list) or len(names) != num_layers or not set(names) <= set(_LAYER_TYPES):
        raise fields.refuse("layer_types", names, f"{num_layers} names out of {', '.join(_LAYER_TYPES)}")
    return names


def _read_generation_config(folder: Path) -> ConfigFields:
    path = folder / "generation_config.json"
    return ConfigFields(str(path), read_json_object(path) if path.exists() else {})
