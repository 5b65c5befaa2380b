"""LoRA adapters of one layer, of which each row of a step may have another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraLayer:
    """A layer that adapters change: a linear layer, or an embedding."""

    in_size: int
    """Inputs, or tokens of the vocabulary."""
    part_sizes: tuple[int, ...]
    """Numbers of outputs that lie side by side, each changed by matrices of its own."""
    num_slots: int
    """Adapters at most."""
    max_rank: int
    dtype: torch.dtype
    device: torch.device
    is_embedding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraMatrices:
    """One adapter's matrices of one part."""

    down: Tensor
    """`[rank, in_size] float32`."""
    up: Tensor
    """`[part_size, rank] float32`, scaled."""


class LoraTable:
    """The adapters of one layer, by slot; this class computes them with torch.

    Slots that no step uses may be set beside steps.
    """

    is_capturable: bool = False
    """True if steps may be captured once and replayed with other slots and adapters."""

    def __init__(self, layer: LoraLayer) -> None:
        self.layer = layer
        self._by_slot: dict[int, list[tuple[slice, Tensor, Tensor]]] = {}

    def set(self, slot: int, parts: Sequence[LoraMatrices | None]) -> None:
        """Put an adapter into a slot; None where it does not change a part."""
        ends, made, column = self.layer.part_sizes, [], 0
        for part, size in zip(parts, ends, strict=True):
            if part is not None:
                down, up = (self._placed(matrix).float() for matrix in (part.down, part.up))
                made.append((slice(column, column + size), down, up))
            column += size
        self._by_slot[slot] = made

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        self._by_slot.pop(slot, None)

    def add(self, x: Tensor, y: Tensor, row_slots: Tensor) -> None:
        """Add the deltas of the rows' adapters to `y` `[num_rows, sum of part_sizes]`, computed in float32.

        `x` is `[num_rows, in_size]` with rows of adjacent numbers, or of an embedding the token ids
        `[num_rows] int64`; `row_slots` `[num_rows] int32` has the slot of each row, -1 is none.
        """
        for slot, parts in tuple(self._by_slot.items()):
            rows = (row_slots == slot).nonzero()[:, 0]
            for outputs, down, up in parts if len(rows) else ():
                inner = (
                    down.T[x[rows]] if self.layer.is_embedding else functional.linear(x[rows].float(), down)
                )
                own = y[:, outputs]
                own[rows] = (own[rows].float() + functional.linear(inner, up)).to(y.dtype)

    def _placed(self, matrix: Tensor) -> Tensor:
        return matrix.to(self.layer.dtype).to(self.layer.device)
