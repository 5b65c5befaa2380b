"""The adapters of one engine: where the model takes them, which are loaded, and whose rows a step has.

A model registers its places, one for each linear layer, while it is built. Each place has a table with a
slot for every adapter that may be loaded, and an adapter has the same slot everywhere. Loading may go on
beside steps; the rows of a step are chosen on the engine thread.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from torch import Tensor

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_engine.adapters.adapter_settings import AdapterSettings
from baton_engine.adapters.adapter_tensors import AdapterTensors, read_adapter
from baton_engine.checkpoint.adapter_places import PlacePart
from baton_kernels.interface.kernels import LayerKernels
from baton_kernels.interface.lora import LoraLayer, LoraMatrices
from baton_kernels.interface.upload import upload

NO_SLOT = -1
"""The slot of a row without an adapter."""
_NUMBER: Final = re.compile(r"\.(\d+)\.")
"""The number of a layer."""
_ENDS: Final = ("model.embed_tokens", "transformer.wte", "model.decoder.embed_tokens", "lm_head")
"""Layers of the first and of the last stage of a pipeline."""


class _Place:
    """A module of the model whose outputs adapters may change."""

    def __init__(
        self,
        bank: AdapterBank,
        parts: Sequence[PlacePart],
        in_size: int,
        inputs: range | None,
        *,
        is_embedding: bool = False,
    ) -> None:
        self.parts, self._in_size, self._inputs = parts, in_size, inputs
        self._bank, self._is_embedding = bank, is_embedding
        self.table = bank.kernels.lora_table(
            LoraLayer(
                in_size=in_size if inputs is None else len(inputs),
                part_sizes=tuple(part.num_rows for part in parts),
                num_slots=bank.settings.max_cpu_loras,
                max_rank=bank.settings.max_rank,
                dtype=bank.dtype,
                device=bank.device,
                is_embedding=is_embedding,
            )
        )

    @property
    def is_active(self) -> bool:
        """True if a row of the step has an adapter."""
        return self._bank.is_active

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the deltas of the step's adapters to `y` `[num_rows, out_features]`, in place; returns it."""
        if (row_slots := self._bank.row_slots(len(y))) is not None:
            self.table.add(x if self._is_embedding or x.stride(-1) == 1 else x.contiguous(), y, row_slots)
        return y

    def matrices(self, tensors: AdapterTensors, names: Mapping[str, str]) -> list[LoraMatrices | None]:
        """Return an adapter's matrices of each part; `names` gives its modules by layer.

        Raises:
            InvalidRequestError: a tensor has another shape than the module.
        """
        return [self._matrices(tensors, names.get(part.layer), part) for part in self.parts]

    def _matrices(self, tensors: AdapterTensors, module: str | None, part: PlacePart) -> LoraMatrices | None:
        if module is None:
            return None
        read = tensors.embedding if self._is_embedding else tensors.matrices
        down, up = read(module, self._in_size, part.out_size)
        if self._inputs is not None:
            down = down[:, self._inputs.start : self._inputs.stop]
        if part.rows is not None:
            up = up[part.rows.start : part.rows.stop : part.rows.step]
        return LoraMatrices(down=down, up=up)


class AdapterBank:
    """The places of a model, and the adapters that are loaded for it."""

    def __init__(
        self, settings: AdapterSettings, dtype: torch.dtype, device: torch.device, kernels: LayerKernels
    ) -> None:
        self.settings, self.dtype, self.device, self.kernels = settings, dtype, device, kernels
        self._places: list[_Place] = []
        self._elsewhere: set[str] = set()
        """Names of layers that other ranks have."""
        self._slots: dict[str, int] = {}
        """By digest: the slot of each adapter that is loaded or being loaded."""
        self._lock = threading.Lock()
        """Held while a slot is chosen."""
        self._row_slots: dict[int, Tensor] = {}
        """By the number of rows of a tensor: the slot of each, `int32`; empty where no row has an adapter."""

    # --- while the model is built ---

    def linear(self, parts: Sequence[PlacePart], in_size: int, inputs: range | None = None) -> _Place:
        """Add a linear layer, or a rank's share of it, with the outputs of `parts` side by side."""
        self._places.append(made := _Place(self, parts, in_size, inputs))
        return made

    def embedding(self, layer: str, shape: tuple[int, int]) -> _Place:
        """Add the embedding `[vocab_size, hidden_size]` of that name."""
        part = PlacePart(layer=layer, out_size=shape[1])
        self._places.append(made := _Place(self, (part,), shape[0], None, is_embedding=True))
        return made

    def elsewhere(self, layers: Iterable[str]) -> None:
        """Tell of layers that other ranks have: adapters may change them too."""
        self._elsewhere.update(layers)

    def add_stages(self, num_layers: int, stored: Iterable[str]) -> None:
        """Take adapters of other stages, too: those of layers like this one's, and of `stored` matrices."""
        own, numbers = self._layers, set[str]()
        self._elsewhere.update(_ENDS)
        for name in own:
            if (found := _NUMBER.search(name)) is not None:
                numbers.add(found[1])
                before, after = name[: found.start(1)], name[found.end(1) :]
                self._elsewhere.update(f"{before}{number}{after}" for number in range(num_layers))
        for name in stored:
            if (found := _NUMBER.search(name)) is not None and found[1] not in numbers:
                self._elsewhere.add(name)

    @property
    def _layers(self) -> set[str]:
        return {part.layer for place in self._places for part in place.parts}

    # --- beside steps ---

    def load(self, path: str, digest: str) -> None:
        """Read an adapter's folder into a slot; no step may use it before this returns.

        Raises:
            InvalidRequestError: it does not fit the model.
            RequestError: INTERNAL, its folder cannot be read any longer, or has another content by now.
            RuntimeError: as many are loaded as there may be.
        """
        if digest in self._slots:
            return
        try:
            tensors = read_adapter(path, digest, self.settings.max_rank)
        except InvalidRequestError as error:
            text = f"its folder is not as it was when the adapter was named: {error}"
            raise RequestError(ErrorCode.INTERNAL, text) from error
        matrices = self._fitted(tensors)
        with self._lock:
            free = set(range(self.settings.max_cpu_loras)) - set(self._slots.values())
            if not free:
                raise RuntimeError(f"{len(self._slots)} adapters are loaded; allowed: so many")
            slot = self._slots[digest] = min(free)
        try:
            for place, parts in zip(self._places, matrices, strict=True):
                place.table.set(slot, parts)
        except BaseException:
            self.drop(digest)
            raise

    def check(self, path: str, digest: str) -> list[list[LoraMatrices | None]]:
        """Return what an adapter would be at each place; nothing is kept.

        Raises:
            InvalidRequestError: the folder cannot be read, has another content by now, or does not fit.
        """
        return self._fitted(read_adapter(path, digest, self.settings.max_rank))

    def _fitted(self, tensors: AdapterTensors) -> list[list[LoraMatrices | None]]:
        names = self._names(tensors)
        return [place.matrices(tensors, names) for place in self._places]

    def drop(self, digest: str) -> None:
        """Forget an adapter that no step uses any more."""
        if (slot := self._slots.get(digest)) is not None:
            for place in self._places:
                place.table.clear(slot)
            del self._slots[digest]

    def _names(self, tensors: AdapterTensors) -> dict[str, str]:
        """Return the adapter's module for each layer that it has.

        Raises:
            InvalidRequestError: a module is none of the model's layers.
        """
        layers = self._layers | self._elsewhere
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
        return bool(self._row_slots)

    @property
    def is_capturable(self) -> bool:
        """True if a step may be captured once and replayed with other adapters."""
        return all(place.table.is_capturable for place in self._places)

    def row_slots(self, num_rows: int) -> Tensor | None:
        """Return the slot of each row of a tensor of so many rows; None if no row has an adapter."""
        return self._row_slots[num_rows] if self._row_slots else None

    def slot(self, digest: str) -> int:
        """Return the slot of an adapter, by digest; empty is none.

        Raises:
            KeyError: it is not loaded.
        """
        return self._slots[digest] if digest else NO_SLOT

    @contextmanager
    def choosing(self, digests: Sequence[str], wanted: Sequence[int] | None = None) -> Iterator[None]:
        """Give each row its adapter, by digest; empty is none. `wanted` are the rows that go on to the end.

        Raises:
            KeyError: an adapter is not loaded.
        """
        slots = np.array([self.slot(digest) for digest in digests], np.int32)
        kinds = (slots,) if wanted is None or len(wanted) == len(slots) else (slots, slots[list(wanted)])
        with self.reading(*upload(kinds, self.device)):
            yield

    @contextmanager
    def reading(self, *row_slots: Tensor) -> Iterator[None]:
        """Take the slots of rows from tensors, each `[num_rows] int32` for tensors of so many rows."""
        before, self._row_slots = self._row_slots, {len(slots): slots for slots in row_slots}
        try:
            yield
        finally:
            self._row_slots = before


def _endings(module: str) -> Iterator[str]:
    """Yield a module's name, and what is left of it behind each of its first dots."""
    parts = module.split(".")
    for start in range(min(3, len(parts))):
        yield ".".join(parts[start:])
