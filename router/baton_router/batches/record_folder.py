"""The folder of files and batches: a record is a small JSON file that is replaced as a whole."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, Generic, TypeVar

import msgspec

from baton_core.errors import InvalidConfigError
from baton_router.batches.threads import in_thread

TEMPORARY: Final = ".tmp"
_RECORD: Final = ".json"
_PRIVATE: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_STALE_S: Final = 3600.0
_NUM_TIME_DIGITS: Final = 16
_NUM_RANDOM_BYTES: Final = 8
T = TypeVar("T", bound=msgspec.Struct)
_Signature = tuple[int, int]
"""Inode and time of change: a record that is replaced has others."""


def new_id(prefix: str) -> str:
    """Return a name that nobody has; later ones sort behind earlier ones."""
    return f"{prefix}{time.time_ns():0{_NUM_TIME_DIGITS}x}{secrets.token_hex(_NUM_RANDOM_BYTES)}"


def time_of(name: str) -> str:
    """Return the digits of such a name that say when it was made."""
    return name[-2 * _NUM_RANDOM_BYTES - _NUM_TIME_DIGITS : -2 * _NUM_RANDOM_BYTES]


def as_private(path: str, flags: int) -> int:
    """Open a file, as an `opener`; a new one is for its user alone, in whatever folder it is."""
    return os.open(path, flags, _PRIVATE_FILE)


def is_stale(path: Path) -> bool:
    """Return whether nobody has written a file for so long that its router is gone."""
    try:
        return path.stat().st_mtime < time.time() - _STALE_S
    except OSError:
        return False


def write_whole(path: Path, pieces: Iterable[bytes]) -> os.stat_result:
    """Write a file in the place of an older one, as a whole and to the disk; blocks.

    Raises:
        OSError: it cannot be written; the older one stays.
    """
    temporary = path.with_suffix(TEMPORARY)
    try:
        with open(temporary, "wb", opener=as_private) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
            status = os.fstat(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return status


class RecordFolder:
    """A folder that several routers may share. Its methods block.

    Raises:
        InvalidConfigError: it cannot be written, or files in it cannot be locked.
    """

    def __init__(self, folder: str) -> None:
        self.path = Path(folder)
        try:
            self.path.mkdir(mode=_PRIVATE, exist_ok=True)
            with TemporaryFile(dir=self.path) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            allowed = f"a folder to write to, whose file system has locks ({error.strerror})"
            raise InvalidConfigError(f"--files-directory is {folder!r}; allowed: {allowed}") from None
        for path in filter(is_stale, self.path.glob(f"*{TEMPORARY}")):
            path.unlink(missing_ok=True)

    def write(self, name: str, record: msgspec.Struct) -> _Signature:
        """Write a record.

        Raises:
            OSError: it cannot be written; the older one stays.
        """
        return _signature(write_whole(self.path / f"{name}{_RECORD}", [msgspec.json.encode(record)]))

    def is_without(self, name: str) -> bool:
        """Return whether a name has no record, not even one that cannot be read now, or by this version."""
        try:
            (self.path / f"{name}{_RECORD}").stat()
        except FileNotFoundError:
            return True
        except OSError:
            pass
        return False

    def remove(self, name: str) -> None:
        """Remove a record, if it is there."""
        (self.path / f"{name}{_RECORD}").unlink(missing_ok=True)


class RecordIndex(Generic[T]):
    """The records of a folder whose names begin alike, as they were when it was last read.

    One that has not changed stays the same object. Used on one loop; what blocks runs in threads.
    """

    def __init__(self, folder: RecordFolder, prefix: str, kind: type[T]) -> None:
        self._folder = folder
        self._prefix = prefix
        self._kind = kind
        self._seen: dict[str, tuple[_Signature, T]] = {}
        self._lock = asyncio.Lock()
        self._seen = self._read()

    def get(self, name: str) -> T | None:
        """Return a record; None if there is none of this name."""
        seen = self._seen.get(name)
        return None if seen is None else seen[1]

    def values(self) -> list[T]:
        """Return all records, by name."""
        return [record for _, (_, record) in sorted(self._seen.items())]

    async def refresh(self) -> None:
        """Read what has changed.

        Raises:
            OSError: the folder cannot be read.
        """
        async with self._lock:
            self._seen = await in_thread(self._read)

    async def add(self, name: str, record: T, shown: T | None = None) -> None:
        """Write a record, in the place of an older one of its name.

        Args:
            shown: the object that stands for it from then on, if another one: who calls makes it the same.

        Raises:
            OSError: it cannot be written; the older one stays.
        """
        async with self._lock:
            signature = await in_thread(self._folder.write, name, record)
            self._seen[name] = signature, record if shown is None else shown

    async def remove(self, name: str) -> None:
        """Remove a record, if it is there."""
        async with self._lock:
            self._seen.pop(name, None)
            await in_thread(self._folder.remove, name)

    def _read(self) -> dict[str, tuple[_Signature, T]]:
        """Read the folder; records that cannot be read are left out."""
        found = {}
        for name, path in self._paths():
            seen = self._seen.get(name)
            try:
                signature = _signature(path.stat())
                if seen is None or seen[0] != signature:
                    seen = signature, msgspec.json.decode(path.read_bytes(), type=self._kind)
            except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
                continue
            except OSError:  # such as an error of the network's: what is known of it stays
                if seen is None:
                    continue
            found[name] = seen
        return found

    def _paths(self) -> Iterator[tuple[str, Path]]:
        for name in os.listdir(self._folder.path):
            if name.startswith(self._prefix) and name.endswith(_RECORD):
                yield name.removesuffix(_RECORD), self._folder.path / name


def _signature(status: os.stat_result) -> _Signature:
    return status.st_ino, status.st_mtime_ns
