"""Scales of an 8-bit KV cache, under the names that checkpoints have for them."""

from __future__ import annotations

from typing import Final

K_NAMES: Final = (
    *("self_attn.k_scale", "self_attn.attn.k_scale", "self_attn.k_proj.k_scale"),
    *("self_attn.k_proj.output_scale", "self_attn.qkv_proj.k_scale"),
)
V_NAMES: Final = tuple(name.replace(".k_", ".v_") for name in K_NAMES)
"""Names of the scales of a layer's keys and values, behind the name of the layer; one of each is there."""
BOTH_NAMES: Final = ("self_attn.kv_scale", "self_attn.attn.kv_scale")
"""Names of one scale of both, in older checkpoints."""
PARTS: Final = frozenset(name.rpartition(".")[2] for name in (*K_NAMES, *V_NAMES, *BOTH_NAMES))
"""The last parts of all these names."""
