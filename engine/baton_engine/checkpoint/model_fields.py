"""The values that describe a model: its config.json, or the metadata of a GGUF file without one beside it.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from baton_core.model.config_overrides import overridden
from baton_engine.checkpoint.config_fields import ConfigFields, read_json_object
from baton_engine.checkpoint.gguf_files import ARCHITECTURES, CONFIG_KEYS, ROPE_FACTORS, gguf_architecture
from baton_engine.checkpoint.gguf_header import GgufHeader, read_gguf_header
from baton_engine.checkpoint.weight_files import find_gguf

_NO_OVERRIDES: Final[Mapping[str, Any]] = MappingProxyType({})
_OPTIONAL: Final = ("attention.head_count_kv", "attention.key_length")
_END_TOKENS: Final = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_DTYPE: Final = "bfloat16"
"""Files do not name the dtype of the model; models of these architectures are published in this one."""
_BESIDE: Final = "the model's config.json beside the file"


def read_model_fields(folder: Path, overrides: Mapping[str, Any] = _NO_OVERRIDES) -> ConfigFields:
    """Return what describes the model in a folder; `overrides` come before its own values.

    Raises:
        InvalidModelError: config.json is missing or broken and no GGUF file takes its place.
    """
    source = find_lone_gguf(folder) or folder / "config.json"
    return ConfigFields(str(source), overridden(read_base_config(folder), overrides))


def find_lone_gguf(folder: Path) -> Path | None:
    """Return the GGUF file of a folder that has no config.json; None for other folders.

    Raises:
        InvalidModelError: there are several files.
    """
    return None if (folder / "config.json").exists() else find_gguf(folder)


def read_base_config(folder: Path) -> dict[str, Any]:
    """Return the values of `read_model_fields` as an object of JSON."""
    gguf = find_lone_gguf(folder)
    return read_json_object(folder / "config.json") if gguf is None else read_gguf_config(gguf)


def read_gguf_config(path: Path) -> dict[str, Any]:
    """Return values as a config.json has them, of the metadata and the tensors of one file.

    Raises:
        InvalidModelError: the file is damaged or of another architecture, it lacks a value, or has one that
            its metadata does not tell whole.
    """
    header = read_gguf_header(path)
    prefix = gguf_architecture(header)
    _require_told_whole(header, prefix)
    keys = {name: (f"{prefix}.{key}", key in _OPTIONAL) for key, name in CONFIG_KEYS.items()}
    keys["max_position_embeddings"] = (f"{prefix}.context_length", False)
    numbers = {name: _number(header, key, is_optional=optional) for name, (key, optional) in keys.items()}
    ends = [_number(header, key, is_optional=True) for key in _END_TOKENS]
    embeddings = header.tensors.get("token_embd.weight")
    if embeddings is None:
        raise header.refuse("tensor token_embd.weight", None, "the embeddings of all tokens")
    theta = _number(header, f"{prefix}.rope.freq_base", is_optional=True)
    return {
        "architectures": [ARCHITECTURES[prefix][0]],
        "model_type": prefix,
        "vocab_size": embeddings.shape[0],
        **{name: number for name, number in numbers.items() if number is not None},
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0 if theta is None else theta},
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)),
        "dtype": _DTYPE,
    }


def _require_told_whole(header: GgufHeader, prefix: str) -> None:
    """Refuse what changes the model and cannot be known from the file alone."""
    scaling = header.metadata.get(f"{prefix}.rope.scaling.type", "none")
    if scaling != "none":
        raise header.refuse(f"{prefix}.rope.scaling.type", scaling, f"none, or {_BESIDE}")
    window = header.metadata.get(f"{prefix}.attention.sliding_window", 0)
    if window:
        raise header.refuse(f"{prefix}.attention.sliding_window", window, f"none, or {_BESIDE}")
    if ROPE_FACTORS in header.tensors:
        raise header.refuse("a tensor", ROPE_FACTORS, f"no factors of the rotation, or {_BESIDE}")


def _number(header: GgufHeader, key: str, *, is_optional: bool) -> int | float | None:
    value = header.metadata.get(key)
    if value is None and is_optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise header.refuse(key, value, f"one number, or {_BESIDE}")
    return float(f"{value:.7g}") if isinstance(value, float) else value  # of float32, such as 1e-5
