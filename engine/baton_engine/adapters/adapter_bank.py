"""The adapters of one engine: where the model takes them, which are loaded, and whose rows a step has.

A model registers its places, one for each linear layer, while it is built. Loading may go on beside steps;
the rows of a step are chosen on the engine thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from baton_core.errors import InvalidRequestError
from baton_engine.adapters.adapter_settings import AdapterSettings
from baton_engine.adapters.adapter_tensors import AdapterTensors, read_adapter
from baton_engine.checkpoint.adapter_places import PlacePart
from baton_kernels.interface.kernels import LayerKernels, Product

Rows = slice | Tensor
"""Consecutive rows, or the indices of rows `[n] int64`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delta:
    """The products of one adapter at one place."""

    down: Product | partial[Tensor]
    """From inputs to the ranks of all parts, side by side."""
    ups: tuple[tuple[slice, slice, Product | partial[Tensor]], ...]
    """For each part: its columns of the ranks, its columns of the outputs, its product."""

    def add(self, x: Tensor, y: Tensor, rows: Rows) -> None:
        """Add to `y` `[num_rows, out_features]` the delta of some rows of `x` `[num_rows, in_features]`."""
        inner = self.down(x[rows].contiguous())
        for ranks, outputs, up in self.ups:
            delta = up(inner[:, ranks].contiguous())
            if isinstance(rows, slice):
                y[rows, outputs] += delta
            else:
                y[:, outputs].index_add_(0, rows, delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EmbeddingDelta:
    """The delta of one adapter to the rows of the embedding."""

    table: Tensor
    """`[vocab_size, rank]`."""
    up: Tensor
    """`[hidden_size, rank]`, scaled."""

    def add(self, token_ids: Tensor, y: Tensor, rows: Rows) -> None:
        """Add to `y` `[num_tokens, hidden_size]` the delta of some tokens."""
        delta = functional.linear(self.table[token_ids[rows]], self.up)
        if isinstance(rows, slice):
            y[rows] += delta
        else:
            y.index_add_(0, rows, delta)


class _Place:
    """A module of the model whose outputs adapters may change."""

    parts: Sequence[PlacePart]

    def __init__(self, bank: AdapterBank, index: int) -> None:
        self._bank, self._index = bank, index

    @property
    def is_active(self) -> bool:
        """True if a row of the step has an adapter."""
        return self._bank.is_active

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the deltas of the step's adapters to `y` `[num_rows, out_features]`, in place; returns it."""
        for digest, rows in self._bank.rows(len(x)):
            if (delta := self._bank.delta(digest, self._index)) is not None:
                delta.add(x, y, rows)
        return y

    def make_delta(
        self, tensors: AdapterTensors, names: Mapping[str, str]
    ) -> _Delta | _EmbeddingDelta | None:
        """Return an adapter's delta here; None where it has none. `names` gives its modules by layer.

        Raises:
            InvalidRequestError: a tensor has another shape than the module.
        """
        raise NotImplementedError


class _LinearPlace(_Place):
    """A linear layer: `x` are its inputs `[num_rows, in_features]`."""

    def __init__(
        self,
        bank: AdapterBank,
        index: int,
        parts: Sequence[PlacePart],
        in_size: int,
        inputs: range | None,
        kernels: LayerKernels,
    ) -> None:
        super().__init__(bank, index)
        self._kernels = kernels
        self.parts, self._in_size, self._inputs = parts, in_size, inputs

    def make_delta(self, tensors: AdapterTensors, names: Mapping[str, str]) -> _Delta | None:
        """See `_Place`."""
        downs, ups, start, column = [], [], 0, 0
        for part in self.parts:
            outputs = slice(column, column + part.num_rows)
            column += part.num_rows
            if (module := names.get(part.layer)) is None:
                continue
            down, up = tensors.matrices(module, self._in_size, part.out_size)
            down = down if self._inputs is None else down[:, self._inputs.start : self._inputs.stop]
            up = up if part.rows is None else up[part.rows.start : part.rows.stop : part.rows.step]
            ranks = slice(start, start + len(down))
            start += len(down)
            downs.append(down)
            ups.append((ranks, outputs, self._product(up)))
        if not ups:
            return None
        return _Delta(down=self._product(torch.cat(downs)), ups=tuple(ups))

    def _product(self, weight: Tensor) -> Product | partial[Tensor]:
        weight = weight.to(self._bank.dtype).to(self._bank.device).contiguous()
        return self._kernels.product(weight, None) or partial(functional.linear, weight=weight)


class _EmbeddingPlace(_Place):
    """The embedding: `x` are token ids `[num_rows] int64`."""

    def __init__(self, bank: AdapterBank, index: int, layer: str, shape: tuple[int, int]) -> None:
        super().__init__(bank, index)
        self._shape = shape
        self.parts = (PlacePart(layer=layer, out_size=shape[1]),)

    def make_delta(self, tensors: AdapterTensors, names: Mapping[str, str]) -> _EmbeddingDelta | None:
        """See `_Place`."""
        if (module := names.get(self.parts[0].layer)) is None:
            return None
        table, up = tensors.embedding(module, *self._shape)
        dtype, device = self._bank.dtype, self._bank.device
        return _EmbeddingDelta(table=table.T.contiguous().to(device, dtype), up=up.to(device, dtype))


class AdapterBank:
    """The places of a model, and the adapters that are loaded for it."""

    def __init__(self, settings: AdapterSettings, dtype: torch.dtype, device: torch.device) -> None:
        self.settings, self.dtype, self.device = settings, dtype, device
        self._places: list[_Place] = []
        self._loaded: dict[str, dict[int, _Delta | _EmbeddingDelta]] = {}
        """By digest: the products at each place, by its index."""
        self._rows: dict[int, list[tuple[str, Rows]]] = {}
        """By the number of rows of a tensor: the rows of each adapter in it."""

    # --- while the model is built ---

    def linear(
        self,
        parts: Sequence[PlacePart],
        in_size: int,
        kernels: LayerKernels,
        inputs: range | None = None,
    ) -> _LinearPlace:
        """Add a linear layer, or a rank's share of it, with the outputs of `parts` side by side."""
        made = _LinearPlace(self, len(self._places), parts, in_size, inputs, kernels)
        self._places.append(made)
        return made

    def embedding(self, layer: str, shape: tuple[int, int]) -> _EmbeddingPlace:
        """Add the embedding `[vocab_size, hidden_size]` of that name."""
        made = _EmbeddingPlace(self, len(self._places), layer, shape)
        self._places.append(made)
        return made

    # --- beside steps ---

    def load(self, path: str, digest: str) -> None:
        """Read an adapter's folder and prepare its products; no step may use it before this returns.

        Raises:
            InvalidRequestError: the folder cannot be read, has another content by now, or does not fit.
        """
        if digest not in self._loaded:
            deltas = self.check(path, digest)
            self._loaded[digest] = {index: delta for index, delta in deltas.items() if delta is not None}

    def check(self, path: str, digest: str) -> dict[int, _Delta | _EmbeddingDelta | None]:
        """Return what an adapter would be at each place; nothing is kept.

        Raises:
            InvalidRequestError: as `load`.
        """
        tensors = read_adapter(path, digest, self.settings.max_rank)
        names = self._names(tensors)
        return {index: place.make_delta(tensors, names) for index, place in enumerate(self._places)}

    def drop(self, digest: str) -> None:
        """Forget an adapter that no step uses any more."""
        self._loaded.pop(digest, None)

    def _names(self, tensors: AdapterTensors) -> dict[str, str]:
        """Return the adapter's module for each layer that it has.

        Raises:
            InvalidRequestError: a module is none of the model's layers.
        """
        layers = {part.layer for place in self._places for part in place.parts}
        names: dict[str, str] = {}
        for module in tensors.modules:
            layer = next((name for name in _endings(module) if name in layers), None)
            if layer is None:
                shown = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
                raise InvalidRequestError("adapter_model: module", module, f"layers of this model: {shown}")
            names[layer] = module
        return names

    # --- in a step ---

    @property
    def is_active(self) -> bool:
        """True if a row of the step has an adapter."""
        return bool(self._rows)

    def rows(self, num_rows: int) -> Sequence[tuple[str, Rows]]:
        """Return the rows of each adapter in a tensor of so many rows."""
        return self._rows[num_rows] if self._rows else ()

    def delta(self, digest: str, index: int) -> _Delta | _EmbeddingDelta | None:
        """Return an adapter's product at a place; None where it changes nothing."""
        return self._loaded[digest].get(index)

    @contextmanager
    def choosing(self, digests: Sequence[str], wanted: Sequence[int] | None = None) -> Iterator[None]:
        """Give each row its adapter, by digest; empty is none. `wanted` are the rows that go on to the end.

        Raises:
            KeyError: an adapter is not loaded.
        """
        if not any(digests):
            yield
            return
        rows = {len(digests): self._segments(digests)}
        if wanted is not None and len(wanted) != len(digests):
            rows[len(wanted)] = self._segments([digests[row] for row in wanted])
        self._rows = rows
        try:
            yield
        finally:
            self._rows = {}

    def _segments(self, digests: Sequence[str]) -> list[tuple[str, Rows]]:
        by_digest: dict[str, list[int]] = {}
        for row, digest in enumerate(digests):
            if digest:
                by_digest.setdefault(digest, []).append(row)
        return [(digest, self._as_rows(rows)) for digest, rows in by_digest.items()]

    def _as_rows(self, rows: list[int]) -> Rows:
        if rows[-1] - rows[0] + 1 == len(rows):
            return slice(rows[0], rows[-1] + 1)
        return torch.tensor(rows, device=self.device)


def _endings(module: str) -> Iterator[str]:
    """Yield a module's name, and what is left of it behind each of its first dots."""
    parts = module.split(".")
    for start in range(min(3, len(parts))):
        yield ".".join(parts[start:])
