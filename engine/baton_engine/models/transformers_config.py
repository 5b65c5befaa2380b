"""The configuration of a decoder that runs through Transformers' own code.

Imports Transformers only where such a model is read: it is an optional dependency, and slow to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from baton_core.kv_layout.kv_spec import KVSpec, group_layers
from baton_core.model.config_overrides import ROPE_KEYS, overridden
from baton_engine.checkpoint.config_fields import MAX_HEAD_DIM, MAX_INTEGER, MAX_LAYERS, ConfigFields
from baton_engine.checkpoint.model_config import (
    read_architecture,
    read_checkpoint_dtype,
    read_eos_token_ids,
    refuse_quantized,
)
from baton_engine.models.model_trace import ModelTrace, UnsupportedError
from baton_engine.models.rope_config import scaled_len

_LAYER_KEYS: Final = ("n_layer", "n_layers", "num_hidden_layers", "num_layers")
_COMPANY_DEPENDENT_ROPE: Final = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig:
    """A model of an architecture without native code."""

    architecture: str
    folder: Path
    vocab_size: int
    num_kv_heads: int
    head_dim: int
    layer_windows: tuple[int | None, ...]
    """For each layer, how many of the last tokens a query sees (itself included); None is all."""
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    """Dtype of the checkpoint, by torch's name."""
    kv_variant: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Values that come before those of config.json."""

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """Return the shape of this model's KV blocks; `dtype` is the cache's dtype by torch's name."""
        groups = group_layers(self.layer_windows)
        return KVSpec(
            num_layers=max(len(group.layers) for group in groups),
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=block_size,
            dtype=dtype,
            groups=groups,
        )


def read_transformers_config(
    folder: Path, fields: ConfigFields, *, native: Sequence[str], overrides: Mapping[str, Any]
) -> TransformersConfig:
    """Read a model folder's configuration and trace its model without weights.

    `native` are the architectures that do not need Transformers, for the error messages; `overrides` are
    among the `fields` already.

    Raises:
        InvalidModelError: Transformers is not installed, does not know the architecture, or its model is
            none that the engine can run.
    """
    architecture = read_architecture(fields)
    allowed = f"{', '.join(native)}, or another decoder of Transformers"
    if find_spec("transformers") is None:
        install = "once it is installed: pip install 'baton[transformers]'"
        raise fields.refuse("architectures", architecture, f"{allowed} {install}")
    refuse_quantized(fields)
    if fields.raw("auto_map") is not None:
        allowed += "; code from model folders (auto_map) is never run, and ModelRegistry takes code of yours"
    for key in _LAYER_KEYS:
        fields.optional_integer(key, maximum=MAX_LAYERS)
    try:
        config = _load_config(folder, architecture, overrides)
        trace, longest_len = _trace(config), _longest_len(config)
    # Code of many authors reads values of the user's: it may raise anything.
    except Exception as error:
        raise fields.refuse("architectures", architecture, f"{allowed}; {_reason(error)}") from error
    return TransformersConfig(
        architecture=architecture,
        folder=folder,
        vocab_size=trace.vocab_size,
        num_kv_heads=trace.num_kv_heads,
        head_dim=trace.head_dim,
        layer_windows=trace.layer_windows,
        max_position_embeddings=longest_len,
        eos_token_ids=read_eos_token_ids(folder, fields),
        dtype=read_checkpoint_dtype(fields),
        overrides=overrides,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, UnsupportedError):
        return f"this one has {error}"
    return f"this one {failure(error)}"


def failure(error: Exception) -> str:
    """Say with what error code fails, one without a message too."""
    return f"fails with {type(error).__name__}: {first_line(error)}".rstrip(": ")


def first_line(error: Exception) -> str:
    """Return the message of an error, cut to fit into another error's; it may be empty."""
    return str(error).strip().partition("\n")[0][:200]


def load_transformers_config(folder: Path, overrides: Mapping[str, Any]) -> Any:
    """Return Transformers' configuration of a model; its own code only, never the folder's."""
    import transformers  # Optional and slow to import.

    load = partial(transformers.AutoConfig.from_pretrained, folder, trust_remote_code=False)
    known = getattr(load(), ROPE_KEYS[0], None) if overrides else None
    if not known:
        return load(**deepcopy(dict(overrides)))
    values = deepcopy(overridden({ROPE_KEYS[0]: known}, overrides))
    newer, older = (values.pop(key, None) for key in ROPE_KEYS)
    config = load(**values, rope_parameters=older or newer)
    config.standardize_rope_params()
    return config


def _load_config(folder: Path, architecture: str, overrides: Mapping[str, Any]) -> Any:
    """Return the configuration of a plain decoder."""
    import transformers  # Optional and slow to import.

    config = load_transformers_config(folder, overrides)
    if config.is_encoder_decoder:
        raise UnsupportedError("an encoder (is_encoder_decoder)")
    if config.get_text_config() is not config:
        raise UnsupportedError("other inputs than text (a configuration inside its configuration)")
    known = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in known or architecture != known[type(config)].__name__:
        raise UnsupportedError("no class of this name among Transformers' causal language models")
    for rope_type in _rope_types(config.to_dict()):
        if rope_type in _COMPANY_DEPENDENT_ROPE:
            raise UnsupportedError(
                f"rope_type {rope_type!r}, which lets the longest sequence of a step decide"
            )
    if getattr(config, "max_position_embeddings", None) is not None:
        _positive(config, "max_position_embeddings")
    return config


def _trace(config: Any) -> ModelTrace:
    from baton_engine.models.transformers_trace import trace_model  # Imports Transformers.

    trace = trace_model(config, _positive(config, "num_hidden_layers"))
    if trace.head_dim > MAX_HEAD_DIM:
        raise UnsupportedError(f"heads of {trace.head_dim}, where {MAX_HEAD_DIM} are the most")
    return trace


def _longest_len(config: Any) -> int:
    """Return the longest sequence, as for native models; sections by type of layer do not lengthen it."""
    trained_len = _positive(config, "max_position_embeddings")
    rope = getattr(config, "rope_parameters", None) or {}
    unscaled = {"linear": "max_position_embeddings", "yarn": "original_max_position_embeddings"}
    key = unscaled.get(rope.get("rope_type", ""))
    known = {"max_position_embeddings": trained_len, **rope}
    return trained_len if key is None else scaled_len(known[key], rope["factor"] or 1.0, trained_len)


def _rope_types(values: Any) -> Iterator[object]:
    """Yield every rope type in a configuration, which may hold several for different layers."""
    if isinstance(values, dict):
        for key, value in values.items():
            if key == "rope_type":
                yield value
            yield from _rope_types(value)


def _positive(config: Any, key: str) -> int:
    value = getattr(config, key, None)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INTEGER:
        raise UnsupportedError(f"{key} {value!r:.100}, where an integer of 1 to {MAX_INTEGER} is needed")
    return value
