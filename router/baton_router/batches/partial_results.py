"""The results of a batch, kept in a partial file from which a killed run goes on."""

from __future__ import annotations

import fcntl
import os
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Final, Self

import msgspec

from baton_core.errors import InvalidConfigError
from baton_router.core.batches.batch_lines import BatchRequest, WrongLine, read_line
from baton_router.core.batches.batch_results import BatchResult

_SYNC_EVERY_S: Final = 1.0


def read_lines(path: Path) -> Iterator[BatchRequest | WrongLine]:
    """Yield what each line of a batch's input asks for, without the empty ones.

    Raises:
        OSError: the file cannot be read.
    """
    return (line for _, line in numbered_lines(path))


def numbered_lines(path: Path) -> Iterator[tuple[int, BatchRequest | WrongLine]]:
    """Yield the same after the line's number in the file, which counts empty ones and begins with 1.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(BOM_UTF8) if number == 1 else line
            if line.strip():
                yield number, read_line(number, line)


class PartialResults:
    """The results so far, one a line in a file that one run at a time appends to.

    Results of earlier runs are read at the start; what follows the last whole line is dropped. Every result
    is handed to the system at once; the disk has those that are older than a second when another one comes.
    A file without any result is removed at the end. One thread at a time uses it.

    Args:
        place: what errors say of where the results are; default: the path, beside --output-file.
        opener: as that of `open`.

    Attributes:
        done: keys of the lines that have a result.
        num_errors: the number of results with an error.
        num_bytes: the size of the file.

    Raises:
        InvalidConfigError: the file cannot be written, or another run writes it.
    """

    def __init__(self, path: Path, place: str = "", opener: Callable[[str, int], int] | None = None) -> None:
        self.path = path
        self.done: set[str | int | None] = set()
        self.num_errors = 0
        self.num_bytes = 0
        self._place = place or f"--output-file has its results in {str(path)!r}"
        self._advice = "" if place else "; the same command goes on"
        self._synced_s = time.monotonic()
        self._lock = Lock()
        try:
            self._file = open(path, "ab", buffering=0, opener=opener)  # noqa: SIM115 (closed by `__exit__`)
        except OSError as error:
            raise InvalidConfigError(
                f"{self._place}; allowed: in a folder to write to ({error.strerror})"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InvalidConfigError(
                f"{self._place}, which another run writes; allowed: one run at a time"
            ) from None
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock, self._file:  # a run that was cancelled may still add a result
            self._sync()
            if not self.done:
                self.path.unlink(missing_ok=True)

    def add(self, result: BatchResult) -> None:
        """Append a result.

        Raises:
            InvalidConfigError: it cannot be written as a whole, such as to a full disk; none may follow.
            ValueError: the file is closed.
        """
        line, reason = msgspec.json.encode(result) + b"\n", "no space is left"
        with self._lock:
            try:
                is_whole = self._file.write(line) == len(line)
            except OSError as error:
                is_whole, reason = False, str(error.strerror)
            if not is_whole:
                raise InvalidConfigError(
                    f"{self._place}; allowed: where there is room ({reason}){self._advice}"
                )
            self._count(result, len(line))
            if time.monotonic() - self._synced_s > _SYNC_EVERY_S:
                self._sync()

    def rename(self, output: Path) -> None:
        """Make the file the output, in the place of an older one, as a whole.

        Raises:
            OSError: it cannot be renamed.
        """
        self._sync()
        self.path.replace(output)

    def _read(self) -> None:
        with self.path.open("rb") as file:
            for line in file:
                try:
                    result = msgspec.json.decode(line, type=BatchResult)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    break
                if not line.endswith(b"\n"):
                    break
                self._count(result, len(line))
        self._file.truncate(self.num_bytes)

    def _count(self, result: BatchResult, num_bytes: int) -> None:
        self.done.add(result.key)
        self.num_errors += result.error is not None
        self.num_bytes += num_bytes

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced_s = time.monotonic()
