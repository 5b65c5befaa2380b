"""The header of a GGUF file: its metadata, and where each tensor lies. Imports no torch.

Every count and length is checked before it is followed, so a damaged file is refused and never costs more
than its header's bytes. Source: the specification of GGUF, versions 2 and 3.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import unreadable

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_HEADER_BYTES: Final = 100_000_000
_MAX_TENSORS: Final = 100_000
_MAX_KEYS: Final = 10_000
_MAX_NAME_BYTES: Final = 65_535
_MAX_RANK: Final = 4
_MAX_ALIGNMENT: Final = 1 << 16
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Formats of `struct` of the types of metadata, by their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockType:
    """A type of tensors: `num_bytes` hold `num_values` neighbouring numbers of a row."""

    name: str
    num_values: int
    num_bytes: int


TYPES: Final = {
    0: BlockType(name="F32", num_values=1, num_bytes=4),
    1: BlockType(name="F16", num_values=1, num_bytes=2),
    30: BlockType(name="BF16", num_values=1, num_bytes=2),
    2: BlockType(name="Q4_0", num_values=32, num_bytes=18),
    6: BlockType(name="Q5_0", num_values=32, num_bytes=22),
    8: BlockType(name="Q8_0", num_values=32, num_bytes=34),
    12: BlockType(name="Q4_K", num_values=256, num_bytes=144),
    13: BlockType(name="Q5_K", num_values=256, num_bytes=176),
    14: BlockType(name="Q6_K", num_values=256, num_bytes=210),
}
"""Types of tensors that can be read, by the numbers of ggml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """The location of one tensor: `num_bytes` from byte `offset` of the file."""

    type: BlockType
    shape: tuple[int, ...]
    """The last axis is that of neighbouring numbers, as torch has it."""
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The whole header; of arrays in the metadata only the length is kept."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def refuse(self, key: str, value: object, allowed: str) -> InvalidModelError:
        """Return the error for a value, to be raised by the caller."""
        return InvalidModelError(f"{self.path}: {key} is {value!r:.200}; allowed: {allowed}")


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check the header of one file.

    Raises:
        InvalidModelError: the file is no GGUF file, is damaged or too short, its tensors overlap, or one is
            of a type that cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _HeaderReader(path, file).read()
    except OSError as error:
        raise unreadable(path, error) from None


class _HeaderReader:
    """Reads a file's header front to back."""

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self._path = path
        self._file = file
        self._file_bytes = path.stat().st_size
        self._position = 0

    def read(self) -> GgufHeader:
        magic, version = self._bytes(4), self._number("<I")
        if magic != _MAGIC or version not in _VERSIONS:
            raise self._refuse("magic and version", (magic, version), f"{_MAGIC!r} and one of {_VERSIONS}")
        num_tensors, num_keys = self._count("tensors", _MAX_TENSORS), self._count("metadata keys", _MAX_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string(_MAX_NAME_BYTES)
            if key in metadata:
                raise self._refuse("a key of the metadata", key, "each key once")
            metadata[key] = self._value(key, self._number("<I"))
        alignment = metadata.get("general.alignment", 32)
        is_power = isinstance(alignment, int) and 8 <= alignment <= _MAX_ALIGNMENT
        if not is_power or alignment & (alignment - 1):
            raise self._refuse("general.alignment", alignment, f"a power of two, 8 to {_MAX_ALIGNMENT}")
        found: dict[str, GgufTensor] = {}
        for _ in range(num_tensors):
            name, tensor = self._tensor(alignment)
            if name in found:
                raise self._refuse("the name of a tensor", name, "each name once")
            found[name] = tensor
        start = -(-self._position // alignment) * alignment
        return GgufHeader(path=self._path, metadata=metadata, tensors=self._placed(found, start))

    def _tensor(self, alignment: int) -> tuple[str, GgufTensor]:
        name = self._string(_MAX_NAME_BYTES)
        rank = self._number("<I")
        if not 1 <= rank <= _MAX_RANK:
            raise self._refuse(f"rank of tensor {name:.200}", rank, f"1 to {_MAX_RANK}")
        shape = tuple(reversed([self._number("<Q") for _ in range(rank)]))
        type_number, offset = self._number("<I"), self._number("<Q")
        block = TYPES.get(type_number)
        if block is None:
            allowed = ", ".join(f"{one.name} ({number})" for number, one in sorted(TYPES.items()))
            raise self._refuse(f"ggml type of tensor {name:.200}", type_number, allowed)
        if min(shape) < 1 or shape[-1] % block.num_values:
            allowed = f"axes of at least 1, the last a multiple of {block.num_values} for {block.name}"
            raise self._refuse(f"shape of tensor {name:.200}", list(shape), allowed)
        if offset % alignment:
            raise self._refuse(f"offset of tensor {name:.200}", offset, f"a multiple of {alignment}")
        num_bytes = math.prod(shape) // block.num_values * block.num_bytes
        return name, GgufTensor(type=block, shape=shape, offset=offset, num_bytes=num_bytes)

    def _placed(self, tensors: dict[str, GgufTensor], start: int) -> dict[str, GgufTensor]:
        """Return the tensors with offsets in the file, after checking that they lie in it and apart."""
        placed, end = {}, start
        for name, one in sorted(tensors.items(), key=lambda item: item[1].offset):
            offset = start + one.offset
            if offset < end:
                raise self._refuse(f"offset of tensor {name:.200}", one.offset, "tensors that do not overlap")
            end = offset + one.num_bytes
            if end > self._file_bytes:
                allowed = f"{end} at least, where tensor {name:.200} ends"
                raise self._refuse("size of the file", self._file_bytes, allowed)
            placed[name] = GgufTensor(type=one.type, shape=one.shape, offset=offset, num_bytes=one.num_bytes)
        return placed

    def _value(self, key: str, kind: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._string(_MAX_HEADER_BYTES)
        if kind == _ARRAY:
            return self._array(key)
        raise self._refuse(f"type of {key:.200}", kind, "0 to 12")

    def _array(self, key: str) -> range:
        """Pass an array; returns the range of its indices."""
        kind, length = self._number("<I"), self._number("<Q")
        if kind == _STRING and length <= _MAX_HEADER_BYTES:
            for _ in range(length):
                self._bytes(self._number("<Q"))
        elif kind in _SCALARS:
            self._bytes(length * struct.calcsize(_SCALARS[kind]))
        else:
            raise self._refuse(f"array {key:.200}", (kind, length), "an array of strings or numbers")
        return range(length)

    def _count(self, what: str, maximum: int) -> int:
        count = self._number("<Q")
        if count > maximum:
            raise self._refuse(f"number of {what}", count, f"at most {maximum}")
        return int(count)

    def _string(self, maximum: int) -> str:
        length = self._number("<Q")
        if length > maximum:
            raise self._refuse("length of a string", length, f"at most {maximum} bytes")
        return self._bytes(length).decode("utf-8", "replace")

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0]

    def _bytes(self, length: int) -> bytes:
        self._position += length
        if self._position > min(self._file_bytes, _MAX_HEADER_BYTES):
            allowed = f"at most {_MAX_HEADER_BYTES} bytes, all in the file of {self._file_bytes}"
            raise self._refuse("size of the header", self._position, allowed)
        return self._file.read(length)

    def _refuse(self, what: str, value: object, allowed: str) -> InvalidModelError:
        return InvalidModelError(f"{self._path}: {what} is {value!r:.200}; allowed: {allowed}")
