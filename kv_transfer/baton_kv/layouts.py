"""Rewriting blocks from one layout into another of the same cache.

Both sides are seen in one canonical order of axes, HTD; no pair of layouts has code of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from baton_core.kv_layout.kv_spec import ITEM_BYTES, KVSpec

Blocks = npt.NDArray[np.uint8]
"""Blocks as bytes, `[num_blocks, block_bytes]`; each row is contiguous."""

_CANONICAL: Final = "HTD"


def convert_blocks(source: Blocks, source_spec: KVSpec, target: Blocks, target_spec: KVSpec) -> None:
    """Write the content of `source` to `target`, equally many blocks, in the layout of `target_spec`.

    The specs differ in nothing but `k_axes` and `v_axes`; the memory must not overlap.
    """
    halves = zip(_canonical(source, source_spec), _canonical(target, target_spec), strict=True)
    for source_half, target_half in halves:
        np.copyto(target_half, source_half)


def _canonical(blocks: Blocks, spec: KVSpec) -> list[npt.NDArray[np.generic]]:
    """K and V of the blocks in place, each `[num_blocks, num_layers, num_kv_heads, block_size, head_dim]`."""
    num_layers, _, *extents = spec.block_shape
    extent = dict(zip(_CANONICAL, extents, strict=True))
    halves = blocks.view(f"u{ITEM_BYTES[spec.dtype]}").reshape(len(blocks), num_layers, 2, -1)
    return [
        halves[:, :, index]
        .reshape(len(blocks), num_layers, *(extent[axis] for axis in axes))
        .transpose(0, 1, *(2 + axes.index(axis) for axis in _CANONICAL))
        for index, axes in enumerate((spec.k_axes, spec.v_axes))
    ]
