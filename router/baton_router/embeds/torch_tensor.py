"""Reads one dense tensor from what `torch.save` writes, without torch and without running anything of it.

Such a file is a zip archive, in which a pickle says where in which storage the tensor lies. The pickle's
opcodes are looked at one by one: those of a dense tensor build plain values, all others are refused.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

_MAX_PICKLE_BYTES: Final = 2**14
_MAX_ENTRIES: Final = 32
_ENTRY: Final = b"PK\x01\x02"
"""Begins an entry of an archive's directory, all of which are read before any is looked at."""
_STORAGES: Final = {
    "torch FloatStorage": "float32",
    "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16",
}
_ITEM_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_MARK: Final = object()


class NoTensorError(ValueError):
    """The bytes are none of a dense tensor; the text says what they are instead."""


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor whose numbers lie row-major in `data`."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class _Name:
    """A name that a pickle would import."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    key: str
    num_items: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_tensor(content: bytes) -> TensorBytes:
    """Return the tensor, or the parameter, of a file.

    Raises:
        NoTensorError: it is damaged, compressed, or holds something else than one dense tensor that lies
            row-major in it.
    """
    if content.count(_ENTRY) > _MAX_ENTRIES:
        raise NoTensorError("an archive of many files")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _read_archive(archive)
    except NoTensorError:
        raise
    # Neither zipfile nor pickletools says what a damaged file may raise.
    except Exception as error:
        raise NoTensorError(f"a damaged file ({type(error).__name__})") from None


def _read_archive(archive: zipfile.ZipFile) -> TensorBytes:
    entries = archive.infolist()
    if any(one.compress_type != zipfile.ZIP_STORED for one in entries):
        raise NoTensorError("an archive of compressed files")
    pickles = [one for one in entries if one.filename.endswith("/data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE_BYTES:
        raise NoTensorError("an archive without the description of one tensor")
    folder = pickles[0].filename.removesuffix("data.pkl")
    orders = [archive.read(one) for one in entries if one.filename == f"{folder}byteorder"]
    if orders not in ([], [b"little"]):
        raise NoTensorError("numbers that are not little-endian")
    tensor = _Unpickling().run(archive.read(pickles[0]))
    size, storage = _ITEM_BYTES[tensor.storage.dtype], tensor.storage
    strides = tuple(prod(tensor.shape[index + 1 :]) for index in range(len(tensor.shape)))
    start, end = tensor.offset * size, (tensor.offset + prod(tensor.shape)) * size
    is_row_major = all(
        length == 1 or mine == plain
        for length, mine, plain in zip(tensor.shape, tensor.strides, strides, strict=True)
    )
    if not is_row_major or min(tensor.shape, default=0) < 1 or tensor.offset < 0:
        raise NoTensorError(f"a view of shape {list(tensor.shape)} and strides {list(tensor.strides)}")
    entry = archive.getinfo(f"{folder}data/{storage.key}")
    if entry.file_size != storage.num_items * size or end > entry.file_size:
        raise NoTensorError(f"a storage of {entry.file_size} bytes for a tensor of {end - start}")
    data = memoryview(archive.read(entry))[start:end]
    if len(data) != end - start:
        raise NoTensorError(f"{len(data)} bytes for a tensor of {end - start}")
    return TensorBytes(storage.dtype, tensor.shape, data)


@dataclass(slots=True)
class _Unpickling:
    """The stack and the memory of a pickle, which hold numbers, texts, tuples and the classes above."""

    stack: list[Any] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)

    def run(self, content: bytes) -> _Tensor:
        """Return the tensor that the whole pickle stands for."""
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                break
            self._step(opcode.name, argument)
        found = self.stack.pop()
        if not isinstance(found, _Tensor) or self.stack:
            raise NoTensorError(f"{type(found).__name__.lstrip('_')}, not one tensor")
        return found

    def _step(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                stack.append(_MARK)
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode == "NEWTRUE")
            case "GLOBAL":
                stack.append(_Name(argument))
            case "STACK_GLOBAL":
                module, name = self._take(2)
                stack.append(_Name(f"{module} {name}"))
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(self._take(int(opcode[-1])))
            case "TUPLE":
                values = tuple(reversed(list(self._to_mark())))
                stack.append(values)
            case "BINPUT" | "LONG_BINPUT":
                self.memory[argument] = stack[-1]
            case "MEMOIZE":
                self.memory[len(self.memory)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memory[argument])
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                name, arguments = self._take(2)
                stack.append(_built(name, arguments))
            case _:
                raise NoTensorError(f"a pickle with the opcode {opcode}")

    def _take(self, number: int) -> tuple[Any, ...]:
        values = tuple(self.stack[-number:])
        del self.stack[-number:]
        return values

    def _to_mark(self) -> Iterator[Any]:
        while (value := self.stack.pop()) is not _MARK:
            yield value


def _storage(given: Any) -> _Storage:
    match given:
        case ("storage", _Name(name), str(key), str(), int(num_items)):
            if name not in _STORAGES:
                raise NoTensorError(f"numbers of a {name.rpartition(' ')[2]}")
            return _Storage(_STORAGES[name], key, num_items)
    raise NoTensorError("a storage of another form")


def _built(name: Any, arguments: Any) -> Any:
    called = name.name if isinstance(name, _Name) else type(name).__name__
    match called, arguments:
        case "collections OrderedDict", ():
            return ()
        case "torch._utils _rebuild_tensor_v2", (
            _Storage() as storage,
            int(offset),
            shape,
            strides,
            bool(),
            (),
        ):
            if _are_integers(shape) and _are_integers(strides):
                return _Tensor(storage, offset, shape, strides)
        case "torch._utils _rebuild_parameter", (_Tensor() as tensor, bool(), ()):
            return tensor
    raise NoTensorError(f"no dense tensor, but a call of {called:.100}")


def _are_integers(values: Any) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, int) for value in values)
