"""Experts of mixtures as Transformers 5 saves them in blocks of 8-bit floats.

The scales of a projection of all experts are one tensor: `experts.gate_up_proj_scale_inv`, `[num_experts,
blocks of gate and of up, blocks of inputs]`, and `experts.down_proj_scale_inv`. The codes are beside them, as
`experts.gate_up_proj` and `experts.down_proj`, or each under its expert's number.

Source: `integrations/finegrained_fp8.py` of Transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Final

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.weight_files import TensorEntry

_SCALES: Final = "_scale_inv"
_GATE_UP: Final = ".experts.gate_up_proj"
_DOWN: Final = ".experts.down_proj"


def separate_fp8_experts(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Return entries in which each expert has its own codes and scales, by the names of its layers.

    The entries of its tensors are runs of bytes of the fused ones, so that nothing is copied.

    Raises:
        InvalidModelError: a fused tensor has another number of axes, or a block of scales lies half in gate.
    """
    separate: dict[str, TensorEntry] = {}
    for name, entry in entries.items():
        projection = name.removesuffix(_SCALES)
        is_fused = projection.endswith((_GATE_UP, _DOWN)) and f"{projection}{_SCALES}" in entries
        separate |= _divide(name, entry, entries) if is_fused else {name: entry}
    return separate


def _divide(
    name: str, entry: TensorEntry, entries: Mapping[str, TensorEntry]
) -> Iterator[tuple[str, TensorEntry]]:
    projection = name.removesuffix(_SCALES)
    experts = projection.rpartition(".")[0]
    is_mixtral = f"{experts}.0.w2.weight" in entries
    names = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    layers = names[:2] if projection.endswith(_GATE_UP) else names[2:]
    shape = entry.shape
    if len(shape) != 3 or not 0 < shape[0] * shape[1] <= entry.num_bytes or shape[1] % len(layers):
        raise InvalidModelError(
            f"{entry.path}: tensor {name} has shape {list(shape)}; allowed: three axes above 0, the second a "
            f"multiple of {len(layers)}"
        )
    part = "weight" if name == projection else f"weight{_SCALES}"
    num_bytes = entry.num_bytes // (shape[0] * len(layers))
    for place, (expert, layer) in enumerate(product(range(shape[0]), layers)):
        own = replace(
            entry,
            shape=(shape[1] // len(layers), shape[2]),
            offset=entry.offset + place * num_bytes,
            num_bytes=num_bytes,
        )
        yield f"{experts}.{expert}.{layer}.{part}", own
