"""Reads weights from a model folder's files, one tensor at a time.

Bytes go from the file straight into the tensor that the model keeps; only a change of dtype or device
passes through a staging buffer of fixed size. Each byte is hashed as it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.adapter_places import AdapterPlaces
from baton_engine.checkpoint.quantization.fp8 import Fp8Quantization
from baton_engine.checkpoint.quantization.gguf import BLOCK_TYPES, decode_values, stored_shape, unpaired
from baton_engine.checkpoint.quantization.layer_format import (
    FLOATS,
    CheckpointQuantization,
    tensor_name,
)
from baton_engine.checkpoint.quantization.online_plan import OnlinePlan
from baton_engine.checkpoint.quantization.quantized_layers import QuantizedLayers
from baton_engine.checkpoint.reading_progress import ReadingProgress
from baton_engine.checkpoint.weight_files import TensorEntry, find_weight_files
from baton_engine.checkpoint.weight_tables import read_tables
from baton_kernels.interface.quantized import Element, InputElement, InputRounding, QuantizedWeight

_TORCH_DTYPES: Final = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
_INT4: Final = (Element.INT4, Element.UINT4)
_READABLE: Final = (*FLOATS, *BLOCK_TYPES)
"""Dtypes of tensors that can be handed out as numbers."""
_HEADS: Final = ("lm_head.", "score.")
_STAGING_BYTES: Final = 16 << 20
_DECODED_VALUES: Final = 1 << 20
"""Numbers of blocks that are decoded at once."""


class Part(NamedTuple):
    """The indices of one axis of a tensor that one of several ranks has; of axis 0 they may have a step."""

    axis: int
    indices: range

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the part of a tensor of that shape."""
        return (*whole[: self.axis], len(self.indices), *whole[self.axis + 1 :])


class WeightReader:
    """The tensors of one model folder by name, as `dtype` on `device`.

    `quantization` is what the checkpoint's config.json says of it; with `online`, linear layers are to be
    made of codes: then they are read in float32, so that codes come from the values of the file. With
    `int4_w4a8`, layers of 4-bit integers that leave their inputs as they are round them to int8. `names`
    returns the tensors under the names that they are asked for by; None: those of a decoder.

    Raises:
        InvalidModelError: a weight file is missing, truncated or damaged.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        quantization: CheckpointQuantization | None = None,
        online: OnlinePlan | None = None,
        int4_w4a8: bool = False,
        names: Callable[[dict[str, TensorEntry]], dict[str, TensorEntry]] | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        self.online = online
        self._int4_w4a8 = int4_w4a8
        self.adapters: AdapterPlaces | None = None
        """Where layers are told of that adapters may change; None where the engine takes none."""
        self.linear_dtype = torch.float32 if online else dtype
        """In which weights and biases of linear layers are wanted."""
        self.loaded_bytes = 0
        """Size of all tensors handed out so far, as those who got them keep them."""
        self.table_bytes = 0
        """Size of those of them from which steps take single rows alone."""
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Shapes of the tensors handed out so far, by name."""
        self.folder = folder
        self._staging = torch.empty(_STAGING_BYTES, dtype=torch.uint8)
        self._entries = (names or _with_prefix)(read_tables(self._files(folder)))
        if isinstance(quantization, Fp8Quantization):
            self._entries = quantization.arrange(self._entries)
        self._quantized = None if quantization is None else QuantizedLayers(quantization, self._entries)
        self._digests: dict[str, bytes] = {}
        """Hashes of the bytes of tensors that were read."""
        self._progress = ReadingProgress(sum(entry.num_bytes for entry in self._entries.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def matrices(self) -> list[str]:
        """Modules of the files with a weight of two dimensions."""
        names = (name.rpartition(".") for name, entry in self._entries.items() if len(entry.shape) == 2)
        return [module for module, _, parameter in names if "weight" in parameter]

    def digest(self) -> str:
        """Return a 32-digit hex hash of the folder's tensors: names, dtypes, shapes and all bytes.

        Tensors that were handed out count as they were read; the others are read now. How tensors are divided
        into files, and in which format, changes nothing.

        Raises:
            InvalidModelError: a file ends too early.
        """
        for name in self._entries.keys() - self._digests.keys():
            self._digests[name] = self._hash_unread(self._entries[name])
        whole = xxhash.xxh3_128()
        for name, entry in sorted(self._entries.items()):
            order = (entry.num_paired_heads,) if entry.num_paired_heads else ()
            whole.update(repr((name, entry.dtype, entry.shape, *order)).encode())
            whole.update(self._digests[name])
        return whole.hexdigest()

    def require_finite(self, name: str, shape: Sequence[int]) -> None:
        """Read a tensor without keeping it.

        Raises:
            InvalidModelError: as `load`, or one of its numbers is NaN or infinite.
        """
        entry, content = self._find(name, tuple(shape), tuple(_TORCH_DTYPES)), xxhash.xxh3_128()
        staging, num_left = self._staging.view(_TORCH_DTYPES[entry.dtype]), math.prod(entry.shape)
        with entry.path.open("rb") as file:
            file.seek(entry.offset)
            while num_left:
                part = staging[:num_left]
                _fill(part, file, entry, content)
                if part.is_floating_point() and not part.float().isfinite().all():
                    text = f"{entry.path}: tensor {name} holds NaN or an infinity; allowed: finite numbers"
                    raise InvalidModelError(text)
                num_left -= len(part)
        self._digests[name] = content.digest()
        self._progress.add(entry.num_bytes)

    def load(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype | None = None,
        part: Part | None = None,
    ) -> Tensor:
        """Return the tensor `name`, or a part of it, newly allocated, as `dtype` or else the reader's.

        Raises:
            InvalidModelError: it is missing, or its shape or dtype is not what the model needs.
        """
        return self.load_stacked([name], [shape], dtype, [part])

    def load_table(self, name: str, shape: Sequence[int], part: Part | None = None) -> Tensor:
        """Return a tensor as `load` does, from which steps take single rows alone."""
        table = self.load(name, shape, part=part)
        self.table_bytes += table.nbytes
        return table

    def load_stacked(
        self,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        dtype: torch.dtype | None = None,
        parts: Sequence[Part | None] | None = None,
    ) -> Tensor:
        """Return the tensors `names` concatenated along their first axis, newly allocated, as `load` does.

        `shapes` are those of whole tensors; of each only its one of `parts` is read, None being all of it.

        Raises:
            InvalidModelError: as `load`.
        """
        parts = parts or [None] * len(names)
        entries = [self._find(name, tuple(shape)) for name, shape in zip(names, shapes, strict=True)]
        wanted = [
            part.shape(entry.shape) if part else entry.shape
            for entry, part in zip(entries, parts, strict=True)
        ]
        shape = (sum(one[0] for one in wanted), *wanted[0][1:])
        stacked = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        start = 0
        for name, entry, part, (num_rows, *_) in zip(names, entries, parts, wanted, strict=True):
            rows = stacked[start : start + num_rows]
            if part is None:
                self._digests[name] = self._read_whole_into(entry, rows)
            else:
                self._read_part_into(entry, rows, part)
            start += num_rows
            self._progress.add(entry.num_bytes)
        self.loaded_bytes += stacked.nbytes
        return stacked

    def load_number(self, name: str) -> float:
        """Return the only number of a tensor.

        Raises:
            InvalidModelError: it holds another number of them, or another dtype.
        """
        entry = self._entries[name]
        self._find(name, entry.shape)
        if math.prod(entry.shape) != 1:
            raise InvalidModelError(f"{entry.path}: tensor {name} has shape {list(entry.shape)}; allowed: []")
        return float(self._load_stored(name))

    def load_integers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor `int64` on the CPU.

        Raises:
            InvalidModelError: it is missing, or has another shape or dtype.
        """
        self._find(name, shape, ("I64",))
        return self._load_stored(name)

    def is_quantized(self, layer: str) -> bool:
        """Say whether the checkpoint stores the linear layer of that name quantized."""
        return self._quantized is not None and self._quantized.format_of(layer) is not None

    def load_quantized(
        self, layer: str, out_features: int, in_features: int, num_fused: int | None = None
    ) -> QuantizedWeight:
        """Return the weight of a layer that is stored quantized.

        With `num_fused` it is that of so many layers of this size in one, with their outputs side by side.

        Raises:
            InvalidModelError: a tensor of it is missing, or not what a layer of this size needs.
        """
        assert self._quantized is not None, "it is stored quantized"
        names = self._quantized.tensors(layer, out_features, in_features, num_fused)
        tensors = {name: self._load_stored(tensor_name(layer, name)) for name in names}
        decoded = self._quantized.decode(layer, tensors, out_features, in_features, num_fused)
        weight = decoded.to(self.device)
        if self._int4_w4a8 and weight.input_rounding is None and weight.element in _INT4:
            weight = replace(weight, input_rounding=InputRounding(element=InputElement.INT8))
        self.loaded_bytes += weight.num_bytes
        return weight

    def _load_stored(self, name: str) -> Tensor:
        """Return a tensor on the CPU as the file has it."""
        entry = self._entries[name]
        self.shapes[name] = entry.shape
        if entry.dtype in BLOCK_TYPES:
            stored = torch.empty(stored_shape(entry), dtype=torch.uint8)
            with entry.path.open("rb") as file:
                file.seek(entry.offset)
                content = xxhash.xxh3_128()
                _fill(stored.view(-1), file, entry, content)
            self._digests[name] = content.digest()
        else:
            stored = torch.empty(entry.shape, dtype=_TORCH_DTYPES[entry.dtype])
            self._digests[name] = self._read_into(entry, stored)
        self._progress.add(entry.num_bytes)
        return unpaired(stored, entry.num_paired_heads) if entry.num_paired_heads else stored

    def _files(self, folder: Path) -> tuple[Path, ...]:
        return find_weight_files(folder)

    def _find(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...] = _READABLE) -> TensorEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise InvalidModelError(f"{self.folder}: tensor {name} is missing; allowed: weights that hold it")
        if entry.shape != shape:
            raise InvalidModelError(
                f"{entry.path}: tensor {name} has shape {list(entry.shape)}; allowed: {list(shape)}"
            )
        if entry.dtype not in dtypes:
            raise InvalidModelError(
                f"{entry.path}: tensor {name} has dtype {entry.dtype}; allowed: {', '.join(dtypes)}"
            )
        self.shapes[name] = shape
        return entry

    def _read_into(self, entry: TensorEntry, destination: Tensor) -> bytes:
        """Fill a tensor from its file; returns the hash of the bytes as they lie there."""
        if entry.dtype in BLOCK_TYPES:
            return self._decode_into(entry, destination)
        stored_dtype = _TORCH_DTYPES[entry.dtype]
        flat, content = destination.view(-1), xxhash.xxh3_128()
        with entry.path.open("rb") as file:
            file.seek(entry.offset)
            if destination.dtype == stored_dtype and destination.device.type == "cpu":
                _fill(flat, file, entry, content)
                return content.digest()
            staging = self._staging.view(stored_dtype)
            for part in torch.split(flat, len(staging)):
                _fill(staging[: len(part)], file, entry, content)
                part.copy_(staging[: len(part)])
        return content.digest()

    def _decode_into(self, entry: TensorEntry, destination: Tensor) -> bytes:
        """Fill a tensor with the numbers of its blocks; returns the hash of the bytes in the file."""
        row_bytes, content = stored_shape(entry)[-1], xxhash.xxh3_128()
        with entry.path.open("rb") as file:
            file.seek(entry.offset)
            for part in torch.split(destination, max(1, _DECODED_VALUES // entry.shape[-1])):
                rows = torch.empty((len(part), row_bytes), dtype=torch.uint8)
                _fill(rows.view(-1), file, entry, content)
                part.copy_(decode_values(rows, entry.dtype))
        return content.digest()

    def _read_whole_into(self, entry: TensorEntry, destination: Tensor) -> bytes:
        """Fill a tensor from its file, rows in the model's order; returns the hash of the file's bytes."""
        digest = self._read_into(entry, destination)
        if entry.num_paired_heads:
            destination.copy_(unpaired(destination, entry.num_paired_heads))
        return digest

    def _read_part_into(self, entry: TensorEntry, destination: Tensor, part: Part) -> None:
        """Fill a tensor with a part of one in its file; no other pages are read unless that is packed."""
        if entry.dtype in BLOCK_TYPES or entry.num_paired_heads:
            whole = torch.empty(entry.shape, dtype=destination.dtype)
            self._read_whole_into(entry, whole)
            destination.copy_(whole.index_select(part.axis, torch.tensor(part.indices)))
            return
        dtype = _TORCH_DTYPES[entry.dtype]
        num_rows = math.prod(entry.shape[: max(1, part.axis)])
        row_bytes = entry.num_bytes // max(1, num_rows)
        if entry.path.stat().st_size < entry.offset + entry.num_bytes:
            raise InvalidModelError(f"{entry.path} ends inside a tensor; allowed: a whole weight file")
        mapped: NDArray[np.uint8] = np.memmap(entry.path, np.uint8, "r", entry.offset, (num_rows, row_bytes))
        start, stop = part.indices.start, part.indices.stop
        if part.axis == 0:
            mapped = mapped[start : stop : part.indices.step]
        else:
            column_bytes = row_bytes // entry.shape[part.axis]
            mapped = mapped[:, start * column_bytes : stop * column_bytes]
        rows_at_once = max(1, _STAGING_BYTES // max(1, mapped.shape[1]))
        destination = destination.view(len(mapped), destination.numel() // max(1, len(mapped)))
        for first in range(0, len(mapped), rows_at_once):
            rows = torch.from_numpy(np.array(mapped[first : first + rows_at_once]))
            piece = destination[first : first + len(rows)]
            piece.copy_(rows.view(dtype).view(piece.shape))

    def _hash_unread(self, entry: TensorEntry) -> bytes:
        content, num_left = xxhash.xxh3_128(), entry.num_bytes
        with entry.path.open("rb") as file:
            file.seek(entry.offset)
            while num_left:
                part = self._staging[:num_left]
                _fill(part, file, entry, content)
                num_left -= len(part)
        self._progress.add(entry.num_bytes)
        return content.digest()


def _with_prefix(entries: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Return the tensors of a bare decoder under the names that they have beside an output head."""
    if "embed_tokens.weight" not in entries:
        return entries
    return {name if name.startswith(_HEADS) else f"model.{name}": entry for name, entry in entries.items()}


def _fill(flat: Tensor, file: BufferedReader, entry: TensorEntry, content: xxhash.xxh3_128) -> None:
    """Read the file's next bytes into a contiguous tensor on the CPU, and hash them."""
    buffer = flat.view(torch.uint8).numpy().data
    num_read = file.readinto(buffer)
    if num_read != len(buffer):
        raise InvalidModelError(f"{entry.path} ends inside a tensor; allowed: a whole weight file")
    content.update(buffer)
