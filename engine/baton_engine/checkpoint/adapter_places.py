"""The layers of a model that LoRA adapters may change, as the model tells of them while it is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacePart:
    """Outputs of a layer that lie side by side and have one name in adapters."""

    layer: str
    out_size: int
    """Outputs of the layer of that name, of which this may be a part."""
    rows: range | None = None
    """The outputs of this part; None is all."""

    @property
    def num_rows(self) -> int:
        return self.out_size if self.rows is None else len(self.rows)


class AdapterPlace(Protocol):
    """A layer whose outputs adapters change."""

    @property
    def is_active(self) -> bool:
        """True if a row of the step has an adapter."""
        ...

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the deltas of the step's adapters for inputs `x` to the outputs `y`, in place; returns `y`.

        `x` is `[num_rows, in_features]`, or of the embedding the token ids `[num_tokens] int64`.
        """
        ...


class AdapterPlaces(Protocol):
    """Takes the layers of a model."""

    @property
    def is_active(self) -> bool:
        """As `AdapterPlace.is_active`."""
        ...

    def row_slots(self, num_rows: int) -> Tensor | None:
        """Return the slot of each row's adapter `[num_rows] int32`; None if no row has one."""
        ...

    def reading(self, *row_slots: Tensor) -> AbstractContextManager[None]:
        """Take the slots of rows from tensors, each `[num_rows] int32` for tensors of so many rows."""
        ...

    def elsewhere(self, layers: Iterable[str]) -> None:
        """Tell of layers that other ranks have: adapters may change them too."""
        ...

    def linear(self, parts: Sequence[PlacePart], in_size: int, inputs: range | None = None) -> AdapterPlace:
        """Add a linear layer, or a rank's share of it, with the outputs of `parts` side by side."""
        ...

    def embedding(self, layer: str, shape: tuple[int, int]) -> AdapterPlace:
        """Add the embedding `[vocab_size, hidden_size]` of that name."""
        ...
