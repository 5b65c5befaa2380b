"""The shape of one KV group: the layers of a model that share one block table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroupSpec:
    """Layers with one KV shape.

    A block is one contiguous region `[num_layers, 2, num_kv_heads, block_size, head_dim]` of the pool
    `[num_blocks, ...]`; index 0 of the axis of length 2 is K, index 1 is V.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    """Element type of the cache, by torch's name: `float32`, `bfloat16`, `float16`."""

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.num_layers, 2, self.num_kv_heads, self.block_size, self.head_dim)

    @property
    def block_bytes(self) -> int:
        elements = 1
        for extent in self.block_shape:
            elements *= extent
        return elements * ITEM_BYTES[self.dtype]

    @property
    def layout(self) -> str:
        """Name under which two workers compare their bytes: equal layouts move raw."""
        shape = "x".join(str(extent) for extent in self.block_shape)
        return f"LKHTD:{shape}:{self.dtype}"
