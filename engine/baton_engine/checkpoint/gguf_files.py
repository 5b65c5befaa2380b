"""The tensors of a GGUF file under the names that Transformers has for them. Imports no torch."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import MAX_INTEGER, ConfigFields
from baton_engine.checkpoint.gguf_header import GgufHeader, read_gguf_header
from baton_engine.checkpoint.weight_files import TensorEntry

ARCHITECTURES: Final = {
    "llama": ("LlamaForCausalLM", "MistralForCausalLM"),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
}
"""Names in config.json by `general.architecture`."""
ROPE_FACTORS: Final = "rope_freqs.weight"
"""Factors of the rotation, computed from config.json's `rope_scaling` when a file is converted."""
_TENSORS: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME: Final = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")
CONFIG_KEYS: Final = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""Keys of metadata, after the architecture, with those of config.json that say the same."""
_TOLERANCE: Final = 1e-6
"""Metadata holds numbers as float32."""


def read_gguf_entries(path: Path) -> dict[str, TensorEntry]:
    """Read the table of one file into tensor name -> entry; dtypes are names of `TYPES`.

    Raises:
        InvalidModelError: as `read_gguf_header`; or the architecture or a tensor is unknown.
    """
    header = read_gguf_header(path)
    architecture = gguf_architecture(header)
    entries: dict[str, TensorEntry] = {}
    for name, tensor in header.tensors.items():
        if name == ROPE_FACTORS:
            continue
        if tensor.type.num_values > 1 and len(tensor.shape) != 2:
            allowed = f"two axes, for {tensor.type.name}"
            raise header.refuse(f"shape of tensor {name:.200}", list(tensor.shape), allowed)
        entries[_translate(header, name)] = TensorEntry(
            path=path,
            dtype=tensor.type.name,
            shape=tensor.shape,
            offset=tensor.offset,
            num_bytes=tensor.num_bytes,
            num_paired_heads=_num_paired_heads(header, architecture, name, tensor.shape[0]),
        )
    return entries


def check_gguf_config(path: Path, fields: ConfigFields) -> None:
    """Check that config.json beside a GGUF file describes the model of its metadata.

    Raises:
        InvalidModelError: a value of config.json is another one, or the file is one of several.
    """
    header = read_gguf_header(path)
    prefix = gguf_architecture(header)
    if header.metadata.get("split.count", 1) != 1:
        raise header.refuse("split.count", header.metadata["split.count"], "1: files in one piece")
    allowed = ARCHITECTURES[prefix]
    named = fields.raw("architectures")
    if named not in [[name] for name in allowed]:
        raise fields.refuse("architectures", named, f"one of {allowed}, since {path} holds a {prefix}")
    for key, name in CONFIG_KEYS.items():
        _require_same(header, f"{prefix}.{key}", fields, name)
    rope = fields.section("rope_parameters") or fields
    _require_same(header, f"{prefix}.rope.freq_base", rope, "rope_theta")
    scaling = fields.section("rope_scaling") or fields.section("rope_parameters")
    kind = None if scaling is None else scaling.raw("rope_type") or scaling.raw("type")
    if (ROPE_FACTORS in header.tensors) != (kind == "llama3"):
        allowed_kind = "llama3" if kind != "llama3" else f"another, since {ROPE_FACTORS} is missing"
        raise fields.refuse("rope_type", kind, f"{allowed_kind}, as in {path}")


def _require_same(header: GgufHeader, key: str, fields: ConfigFields, name: str) -> None:
    theirs, ours = header.metadata.get(key), fields.raw(name)
    if theirs is None or ours is None:
        return
    is_number = isinstance(ours, int | float) and isinstance(theirs, int | float)
    if not is_number or not math.isclose(ours, theirs, rel_tol=_TOLERANCE):
        raise fields.refuse(name, ours, f"{theirs!r:.200}, which is {key} in {header.path}")


def gguf_architecture(header: GgufHeader) -> str:
    """Return the architecture of a file, a key of `ARCHITECTURES`.

    Raises:
        InvalidModelError: it is another one.
    """
    value = header.metadata.get("general.architecture")
    if value not in ARCHITECTURES:
        raise header.refuse("general.architecture", value, ", ".join(ARCHITECTURES))
    return str(value)


def _translate(header: GgufHeader, name: str) -> str:
    stem, _, part = name.rpartition(".")
    if stem in _TENSORS and part == "weight":
        return f"{_TENSORS[stem]}.{part}"
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _LAYER_TENSORS:
        layers = ", ".join(f"blk.N.{one}" for one in _LAYER_TENSORS)
        raise header.refuse("a tensor", name, f"{', '.join(_TENSORS)}, {layers}")
    return f"model.layers.{match[1]}.{_LAYER_TENSORS[match[2]]}.{match[3]}"


def _num_paired_heads(header: GgufHeader, architecture: str, name: str, num_rows: int) -> int:
    """Return in how many heads the rows of a tensor lie in pairs that rotate together; 0 for others."""
    if architecture != "llama" or not re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name):
        return 0
    metadata: dict[str, Any] = header.metadata
    heads = metadata.get("llama.attention.head_count")
    if ".attn_k." in name:
        heads = metadata.get("llama.attention.head_count_kv", heads)
    if type(heads) is not int or not 1 <= heads <= MAX_INTEGER or num_rows % (2 * heads):
        key = "llama.attention.head_count, or head_count_kv,"
        raise InvalidModelError(
            f"{header.path}: {key} is {heads!r:.200}; allowed: an integer that divides half of the "
            f"{num_rows} rows of {name}"
        )
    return heads
