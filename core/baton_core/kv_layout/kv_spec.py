"""The shape of a worker's KV cache: equal blocks, used by groups of layers.

Layers that see the same tokens form a KV group and share a block table. All groups have the same number of
layers, so every block of the pool has one shape and serves any of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from baton_core.kv_layout.paging import Paging

ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers that share one block table."""

    layers: tuple[int, ...]
    """The model's layers, ascending; the i-th of them lies at index i of a block."""
    window: int | None = None
    """Number of last tokens that a query sees, itself included; None is all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    """One model's KV cache.

    A block is one contiguous region `[num_layers, 2, num_kv_heads, block_size, head_dim]` of the pool
    `[num_blocks, ...]`; index 0 of the axis of length 2 is K, index 1 is V. The last three axes lie in
    memory as `k_axes` and `v_axes` say; a kernel that wants another order than HTD views its half so.
    """

    num_layers: int
    """Layers in a block; a group may use fewer of them."""
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    """Element type of the cache, one of `ITEM_BYTES`, by torch's names."""
    groups: tuple[KVGroup, ...] = ()
    """Empty stands for one group of all layers that sees all tokens."""
    k_axes: str = "HTD"
    """Order in memory of the axes of a layer's K: H heads, T tokens of the block, D head dimension."""
    v_axes: str = "HTD"
    """The same of V; `HDT` is V transposed inside each head."""
    scales: tuple[tuple[float, float], ...] = ()
    """The values of code 1 in each layer's K and V, in a cache of 8-bit floats; empty is 1 for all."""

    def __post_init__(self) -> None:
        for name in ("k_axes", "v_axes"):
            if sorted(getattr(self, name)) != sorted("HTD"):
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: H, T and D in any order")
        if not self.groups:
            object.__setattr__(self, "groups", (KVGroup(layers=tuple(range(self.num_layers))),))

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.num_layers, 2, self.num_kv_heads, self.block_size, self.head_dim)

    @property
    def block_bytes(self) -> int:
        return math.prod(self.block_shape) * ITEM_BYTES[self.dtype]

    @property
    def head_bytes(self) -> int:
        """Size of the K, or the V, of one head of a layer in a block."""
        return self.block_size * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def paging(self) -> Paging:
        """Paging of tokens into blocks, for each group."""
        return Paging(block_size=self.block_size, windows=tuple(group.window for group in self.groups))

    @property
    def layout(self) -> str:
        """Name under which two workers compare their blocks: equal names hold equal content.

        The order of axes in memory is no part of it: the consumer converts. Nor are the windows, which
        `ModelIdentity.kv_windows` tells.
        """
        shape = "x".join(str(extent) for extent in self.block_shape)
        groups = "|".join(",".join(map(str, group.layers)) for group in self.groups)
        scales = f":{blake2b(repr(self.scales).encode(), digest_size=8).hexdigest()}" if self.scales else ""
        return f"LKHTD:{shape}:{self.dtype}:{groups}{scales}"


def group_layers(windows: Sequence[int | None]) -> tuple[KVGroup, ...]:
    """Divide the layers, given each one's window, into groups of nearly equal size.

    The rarest kind of layer sets the size; the last group of another kind may use fewer layers of its
    blocks. Kinds of nearly the same number make one group each. Layers that see all tokens come first.
    """
    layers_of: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        layers_of.setdefault(window, []).append(layer)
    counts = [len(layers) for layers in layers_of.values()]
    size = max(counts) if max(counts) < 1.25 * min(counts) else min(counts)
    return tuple(
        KVGroup(layers=tuple(layers[start : start + size]), window=window)
        for window, layers in sorted(layers_of.items(), key=lambda kind: kind[0] is not None)
        for start in range(0, len(layers), size)
    )
