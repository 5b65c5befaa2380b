"""The folder of a router's files and batches: a record is a small JSON file that is replaced as a whole."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from baton_core.errors import InvalidConfigError

TEMPORARY: Final = ".tmp"
_RECORD: Final = ".json"
_LOCK: Final = "lock"
_PRIVATE: Final = 0o700
T = TypeVar("T")


def new_id(prefix: str) -> str:
    """Return a name that nobody has; later ones sort behind earlier ones."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


class RecordFolder:
    """A folder that one router at a time uses. Its methods block.

    Raises:
        InvalidConfigError: it cannot be written, or another router uses it.
    """

    def __init__(self, folder: str) -> None:
        self.path = Path(folder)
        try:
            self.path.mkdir(mode=_PRIVATE, exist_ok=True)
            self._lock = (self.path / _LOCK).open("wb")
        except OSError as error:
            text = f"--files-directory is {folder!r}; allowed: a folder to write to ({error.strerror})"
            raise InvalidConfigError(text) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            text = f"--files-directory is {folder!r}, which another router uses; allowed: a folder of its own"
            raise InvalidConfigError(text) from None
        for path in self.path.glob(f"*{TEMPORARY}"):
            path.unlink()

    def close(self) -> None:
        """Let another router use the folder."""
        self._lock.close()

    def read(self, prefix: str, kind: type[T]) -> Iterator[T]:
        """Yield the records whose names begin so, by name; those that cannot be read are left out."""
        for path in sorted(self.path.glob(f"{prefix}*{_RECORD}")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=kind)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue

    def write(self, name: str, record: msgspec.Struct) -> None:
        """Write a record.

        Raises:
            OSError: it cannot be written; the older one stays.
        """
        path = self.path / f"{name}{_RECORD}"
        temporary = path.with_suffix(TEMPORARY)
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def remove(self, name: str) -> None:
        """Remove a record, if it is there."""
        (self.path / f"{name}{_RECORD}").unlink(missing_ok=True)
