"""Which safetensors files a model folder holds and what their headers say. Imports no torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidModelError
from baton_engine.config_fields import read_json_object

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_MAX_HEADER_BYTES: Final = 100_000_000
ITEM_BYTES: Final = {"F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where one tensor lies: `num_bytes` from byte `offset` of `path`, row-major."""

    path: Path
    dtype: str
    """By safetensors' name: `F32`, `BF16`, `F16` and others."""
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def find_weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the folder's weight files, sorted by name: those of the shard index, or the single file.

    Raises:
        InvalidModelError: the folder, its weights or a shard of the index is missing.
    """
    if not folder.is_dir():
        raise InvalidModelError(f"model folder {folder} is missing; allowed: an existing folder")
    if (folder / _INDEX).exists():
        names = _index_shards(folder / _INDEX)
    elif (folder / _SINGLE).exists():
        names = [_SINGLE]
    else:
        raise InvalidModelError(f"{folder} holds no weights; allowed: {_SINGLE}, or shards with {_INDEX}")
    for name in names:
        if not (folder / name).is_file():
            raise InvalidModelError(
                f"{folder / _INDEX} names {name}, which is missing; allowed: all its shards"
            )
    return tuple(folder / name for name in names)


def _index_shards(path: Path) -> list[str]:
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidModelError(f"{path}: weight_map is {weight_map!r}; allowed: tensor names to file names")
    names = set(weight_map.values())
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidModelError(
                f"{path}: weight_map holds {name!r}; allowed: file names in the same folder"
            )
    return sorted(names)


def read_header_bytes(path: Path) -> bytes:
    """Return a safetensors file's JSON header as stored.

    Raises:
        InvalidModelError: the file ends before its header does.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if 0 < length <= _MAX_HEADER_BYTES else b""
    if not header or len(header) < length:
        raise InvalidModelError(f"{path} has no complete header; allowed: a whole safetensors file")
    return header


def read_entries(path: Path) -> dict[str, TensorEntry]:
    """Read the header of one file into tensor name -> entry.

    Raises:
        InvalidModelError: the header is damaged, or the file is shorter or longer than it says.
    """
    header = read_header_bytes(path)
    data_start = 8 + len(header)
    try:
        described = json.loads(header)
        described.pop("__metadata__", None)
        entries = {name: _entry(path, data_start, value) for name, value in described.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidModelError(
            f"{path} has a damaged header ({error!r}); allowed: a safetensors file"
        ) from None
    expected = max((entry.offset + entry.num_bytes for entry in entries.values()), default=data_start)
    size = path.stat().st_size
    if size != expected:
        raise InvalidModelError(f"{path} holds {size} bytes; allowed: {expected}, which its header announces")
    return entries


def _entry(path: Path, data_start: int, described: dict[str, Any]) -> TensorEntry:
    begin, end = described["data_offsets"]
    dtype, shape = str(described["dtype"]), tuple(int(extent) for extent in described["shape"])
    item_bytes = ITEM_BYTES.get(dtype)
    if not 0 <= begin <= end or (item_bytes is not None and end - begin != item_bytes * math.prod(shape)):
        raise ValueError(f"data_offsets {begin}, {end} for {dtype} {shape}")
    return TensorEntry(path=path, dtype=dtype, shape=shape, offset=data_start + begin, num_bytes=end - begin)
