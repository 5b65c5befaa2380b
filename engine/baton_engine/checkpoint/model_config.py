"""The configuration of a model for the engine, and the reading of fields that all model folders share."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from baton_core.kv_layout.kv_spec import KVSpec
from baton_engine.checkpoint.config_fields import ConfigFields, read_json_object

_DTYPES: Final = ("float32", "bfloat16", "float16")
_LAYER_TYPES: Final = ("full_attention", "sliding_attention")


class ModelConfig(Protocol):
    """The configuration of one model. Each family adds what its code needs."""

    @property
    def architecture(self) -> str:
        """Name under `architectures` in config.json."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence in tokens."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str:
        """Dtype of the checkpoint, by torch's name."""
        ...

    @property
    def kv_variant(self) -> str:
        """Tells apart caches that differ by more than model folder and KVSpec; empty where none do."""
        ...

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """Return the shape of this model's KV blocks; `dtype` is the cache's dtype by torch's name."""
        ...


def uncached_spec(block_size: int, dtype: str) -> KVSpec:
    """Return the smallest blocks there are: without a KV cache the pool counts the tokens of prompts."""
    return KVSpec(num_layers=1, num_kv_heads=1, head_dim=1, block_size=block_size, dtype=dtype)


def read_architecture(fields: ConfigFields) -> str:
    """Return the one name under `architectures`.

    Raises:
        InvalidModelError: it is not one name.
    """
    value = fields.raw("architectures")
    name = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(name, str):
        raise fields.refuse("architectures", value, "a list of one name")
    return name


def read_eos_token_ids(folder: Path, fields: ConfigFields) -> tuple[int, ...]:
    """Return the end tokens of config.json and generation_config.json, each once."""
    path = folder / "generation_config.json"
    generation = ConfigFields(str(path), read_json_object(path) if path.exists() else {})
    return tuple(dict.fromkeys(fields.token_ids("eos_token_id") + generation.token_ids("eos_token_id")))


def read_checkpoint_dtype(fields: ConfigFields, default: str = "float32") -> str:
    """Return the dtype that config.json names, under the newer or the older key; without them `default`."""
    key = "dtype" if fields.raw("dtype") is not None else "torch_dtype"
    return fields.choice(key, _DTYPES, default)


def read_windowed_layers(fields: ConfigFields, num_layers: int) -> list[bool] | None:
    """Say for each layer whether it has a window; None where config.json does not list its layers' types."""
    names = fields.raw("layer_types")
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != num_layers or any(n not in _LAYER_TYPES for n in names):
        raise fields.refuse("layer_types", names, f"{num_layers} names out of {', '.join(_LAYER_TYPES)}")
    return [name == "sliding_attention" for name in names]


def refuse_quantized(fields: ConfigFields) -> None:
    """Raise InvalidModelError for weights that are stored quantized."""
    if fields.raw("quantization_config") is not None:
        allowed = "unquantized weights (those that are stored quantized cannot be read yet)"
        raise fields.refuse("quantization_config", fields.raw("quantization_config"), allowed)
