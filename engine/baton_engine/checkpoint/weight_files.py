"""The weight files of a model folder and their headers. Imports no torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import read_json_object, unreadable

_SAFETENSORS: Final = "model.safetensors"
_TORCH: Final = "pytorch_model.bin"
_MAX_HEADER_BYTES: Final = 100_000_000
ITEM_BYTES: Final = {
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "I16": 2,
    "I32": 4,
    "I64": 8,
}
_MAX_RANK: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """The location of one tensor: `num_bytes` from byte `offset` of `path`, row-major."""

    path: Path
    dtype: str
    """By safetensors' name: `F32`, `BF16`, `F16` and others."""
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    num_paired_heads: int = 0
    """Heads whose rows lie so that the two that rotate together are neighbours; 0: half a head apart."""


def find_weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the folder's weight files, sorted by name: the single file, or those of the shard index.

    Where both are there the single file is taken, as by Transformers. A GGUF file is taken where there are no
    others.

    Raises:
        InvalidModelError: the folder, its weights or a shard of the index is missing.
    """
    if not folder.is_dir():
        raise InvalidModelError(f"model folder {folder} is missing; allowed: an existing folder")
    for single in (_SAFETENSORS, _TORCH):
        if (folder / single).exists():
            return (_regular_file(folder / single),)
        index = folder / f"{single}.index.json"
        if index.exists():
            return _shards(folder, index)
    gguf = find_gguf(folder)
    if gguf is not None:
        return (_regular_file(gguf),)
    raise InvalidModelError(
        f"{folder} holds no weights; allowed: {_SAFETENSORS}, or shards with {_SAFETENSORS}.index.json; "
        f"or {_TORCH}, or its shards likewise; or one GGUF file"
    )


def find_gguf(folder: Path) -> Path | None:
    """Return the GGUF file of a folder whose weights are in one; None for other folders.

    Raises:
        InvalidModelError: there are several, and nothing says which is meant.
    """
    others = [
        folder / f"{single}{index}" for single in (_SAFETENSORS, _TORCH) for index in ("", ".index.json")
    ]
    found = [] if any(path.exists() for path in others) else sorted(folder.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InvalidModelError(f"{folder} holds {names:.200}; allowed: one GGUF file")
    return found[0] if found else None


def _regular_file(path: Path) -> Path:
    if not path.is_file():
        raise InvalidModelError(f"{path} is no regular file; allowed: a weight file")
    return path


def read_weight_map(shard: Path) -> dict[str, str]:
    """Return the name of each tensor's file by the index that a shard belongs to.

    Raises:
        InvalidModelError: the index is damaged.
    """
    single = _SAFETENSORS if is_safetensors(shard) else _TORCH
    return _read_index(shard.with_name(f"{single}.index.json"))


def _shards(folder: Path, index: Path) -> tuple[Path, ...]:
    names = sorted(set(_read_index(index).values()))
    for name in names:
        if not (folder / name).is_file():
            raise InvalidModelError(f"{index} names {name}, which is missing; allowed: all its shards")
    return tuple(folder / name for name in names)


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidModelError(f"{path}: weight_map is {weight_map!r}; allowed: tensor names to file names")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidModelError(
                f"{path}: weight_map holds {name!r:.200}; allowed: file names in the same folder"
            )
    return weight_map


def is_safetensors(path: Path) -> bool:
    return path.suffix == ".safetensors"


def is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf"


def _read_json_header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            is_possible = 0 < length <= min(_MAX_HEADER_BYTES, path.stat().st_size)
            header = file.read(length) if is_possible else b""
    except OSError as error:
        raise unreadable(path, error) from None
    if not header or len(header) < length:
        raise InvalidModelError(f"{path} has no complete header; allowed: a whole safetensors file")
    return header


def read_entries(path: Path) -> dict[str, TensorEntry]:
    """Read the header of one safetensors file into tensor name -> entry.

    Raises:
        InvalidModelError: the header is damaged, its tensors overlap or leave gaps, or the file is shorter or
            longer than it says.
    """
    header = _read_json_header(path)
    data_start = 8 + len(header)
    try:
        described = json.loads(header)
        described.pop("__metadata__", None)
        entries = {name: _entry(path, data_start, value) for name, value in described.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, error) from None
    expected = _end_of_tensors(path, data_start, entries)
    size = path.stat().st_size
    if size != expected:
        raise InvalidModelError(f"{path} holds {size} bytes; allowed: {expected}, which its header announces")
    return entries


def read_metadata(path: Path) -> dict[str, str]:
    """Return the texts in the header of one safetensors file that do not describe its tensors.

    Raises:
        InvalidModelError: the header is damaged.
    """
    try:
        metadata = json.loads(_read_json_header(path)).get("__metadata__", {})
    except (ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, error) from None
    if not isinstance(metadata, dict) or any(not isinstance(text, str) for text in metadata.values()):
        raise InvalidModelError(f"{path}: __metadata__ is {metadata!r:.200}; allowed: texts by their names")
    return metadata


def _damaged(path: Path, error: Exception) -> InvalidModelError:
    return InvalidModelError(f"{path} has a damaged header ({error!r:.200}); allowed: a safetensors file")


def _end_of_tensors(path: Path, data_start: int, entries: dict[str, TensorEntry]) -> int:
    """Return where the last tensor ends, after checking that each begins where the one before ended."""
    end = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if entry.offset != end:
            raise InvalidModelError(
                f"{path}: tensor {name} begins at byte {entry.offset - data_start} of the data; "
                f"allowed: {end - data_start}, where the tensor before it ends"
            )
        end += entry.num_bytes
    return end


def _entry(path: Path, data_start: int, described: dict[str, Any]) -> TensorEntry:
    begin, end = described["data_offsets"]
    dtype, shape = str(described["dtype"]), tuple(described["shape"])
    if any(type(number) is not int for number in (begin, end, *shape)) or len(shape) > _MAX_RANK:
        raise ValueError(f"data_offsets {begin!r}, {end!r} for shape {shape!r}")
    item_bytes = ITEM_BYTES.get(dtype)
    is_size_right = item_bytes is None or end - begin == item_bytes * math.prod(shape)
    if not 0 <= begin <= end or min(shape, default=1) < 0 or not is_size_right:
        raise ValueError(f"data_offsets {begin}, {end} for {dtype} {shape}")
    return TensorEntry(path=path, dtype=dtype, shape=shape, offset=data_start + begin, num_bytes=end - begin)
