"""Which bytes a rank reads from which ranks of another group, where each rank has a KV pool of its own.

A rank's pool holds the same blocks as those of the other ranks, and of each block its layers and KV heads.
A block is `[num_layers, 2, num_kv_heads, head]`, and a head's K or V of a layer is the smallest piece: two
groups may divide layers and heads in any way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVGroup, KVSpec
from baton_core.ranks.rank_layout import ParallelSizes, RankPlace

_HALVES: Final = 2
"""K and V of a layer."""


@dataclass(frozen=True, slots=True)
class BlockPart:
    """The layers and KV heads of each block that one pool holds."""

    layers: range
    heads: range

    def spec(self, whole: KVSpec) -> KVSpec:
        """Return the spec of this pool, where a pool with all layers and heads has `whole`."""
        groups = tuple(
            KVGroup(
                layers=tuple(layer for layer in group.layers if layer in self.layers), window=group.window
            )
            for group in whole.groups
        )
        num_layers = max(len(group.layers) for group in groups)
        return replace(whole, num_layers=num_layers, num_kv_heads=len(self.heads), groups=groups)

    def cells(self, whole: KVSpec) -> list[int]:
        """Return the numbers that its pieces have in a whole block, in their order in memory."""
        return [
            (row * _HALVES + half) * whole.num_kv_heads + head
            for row in self._rows(whole)
            for half in range(_HALVES)
            for head in self.heads
        ]

    def _rows(self, whole: KVSpec) -> range:
        """Return its places along the axis of layers: all of them where each layer group has its own."""
        return self.layers if len(whole.groups) == 1 else range(whole.num_layers)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes to copy, counted from the start of a block at either end."""

    source: int
    target: int
    num_bytes: int


def require_separable(spec: KVSpec, sizes: ParallelSizes) -> None:
    """Refuse a cache that ranks cannot hold in pools of their own.

    Raises:
        InvalidConfigError: heads do not lie apart in a block, or layers of several windows are in stages.
    """
    for name in ("k_axes", "v_axes"):
        axes = getattr(spec, name)
        if not axes.startswith("H"):
            raise InvalidConfigError(f"{name} is {axes!r}, with pools of ranks apart; allowed: HTD, HDT")
    if len(spec.groups) > 1 and sizes.pipeline > 1:
        text = f"pipeline_parallel_size is {sizes.pipeline}, with pools of ranks apart and layers that differ"
        raise InvalidConfigError(f"{text} in their windows; allowed: 1, or pools that ranks share")


def block_part(spec: KVSpec, place: RankPlace) -> BlockPart:
    """Return what a rank holds of each block of a cache of `spec`."""
    num_layers = sum(len(group.layers) for group in spec.groups)
    return BlockPart(place.layers(num_layers), place.kv_heads(spec.num_kv_heads))


def block_parts(spec: KVSpec, sizes: ParallelSizes) -> tuple[BlockPart, ...]:
    """Return what each rank of a group holds, by rank."""
    return tuple(block_part(spec, RankPlace(sizes=sizes, rank=rank)) for rank in range(sizes.num_ranks))


def copy_number(spec: KVSpec, place: RankPlace) -> int:
    """Return which copy of its KV heads a rank holds; those with the same number hold a block once."""
    return place.tensor_rank % max(1, place.sizes.tensor // spec.num_kv_heads)


def plan_reads(
    spec: KVSpec, producers: Sequence[BlockPart], consumers: Sequence[BlockPart], rank: int
) -> dict[int, tuple[ByteRange, ...]]:
    """Plan what `rank` of the consumers reads of each block: byte ranges by producer's rank.

    Each piece is read once, also where several producers have it: consumers are spread over these. Ranges
    that follow each other at both ends are one.

    Raises:
        InvalidConfigError: no producer has a piece.
    """
    part, cell_bytes = consumers[rank], spec.head_bytes
    offsets = [
        {cell: position * cell_bytes for position, cell in enumerate(one.cells(spec))} for one in producers
    ]
    plan: dict[int, list[ByteRange]] = {}
    for position, cell in enumerate(part.cells(spec)):
        having = [number for number, cells in enumerate(offsets) if cell in cells]
        if not having:
            text = f"piece {cell} of a block is at no rank of the producer"
            raise InvalidConfigError(f"{text}; allowed: ranks that hold all layers and KV heads")
        producer = having[rank % len(having)]
        ranges = plan.setdefault(producer, [])
        found = ByteRange(offsets[producer][cell], position * cell_bytes, cell_bytes)
        last = ranges[-1] if ranges else None
        if last and (last.source + last.num_bytes, last.target + last.num_bytes) == (
            found.source,
            found.target,
        ):
            ranges[-1] = replace(last, num_bytes=last.num_bytes + cell_bytes)
        else:
            ranges.append(found)
    return {producer: tuple(ranges) for producer, ranges in plan.items()}
