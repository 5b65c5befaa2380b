"""The results of a batch, in OpenAI's format, kept in a partial file from which a killed run goes on."""

from __future__ import annotations

import fcntl
import os
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from baton_core.errors import InvalidConfigError

_SYNC_EVERY_S: Final = 1.0


class BatchError(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The reason why a line has no answer; `line` counts from 1 and is that of a line that is no request."""

    code: str
    message: str
    line: int | None = None


class BatchResponse(msgspec.Struct, kw_only=True):
    """The answer of the server."""

    status_code: int
    request_id: str
    body: Any


class BatchResult(msgspec.Struct, kw_only=True):
    """A line of the output."""

    id: str
    custom_id: str | None
    response: BatchResponse | None
    error: BatchError | None

    @property
    def key(self) -> str | int | None:
        """The name of the line that it belongs to: its number where it has no id."""
        if self.custom_id is None and self.error is not None:
            return self.error.line
        return self.custom_id


def answered(result_id: str, custom_id: str, response: BatchResponse) -> BatchResult:
    """Return the result of a request; an answer other than 200 is an error too, and stays its `body`."""
    error = None
    if response.status_code != HTTPStatus.OK:
        body = response.body
        told = body.get("error") if isinstance(body, dict) else None
        told = told if isinstance(told, dict) else {}
        error = BatchError(
            code=str(told.get("code") or response.status_code),
            message=str(told.get("message") or body),
        )
    return BatchResult(id=result_id, custom_id=custom_id, response=response, error=error)


class PartialResults:
    """The results so far, one a line in a file that one run at a time appends to.

    Results of earlier runs are read at the start; what follows the last whole line is dropped. Every result
    is handed to the system at once; the disk has those that are older than a second when another one comes.
    A file without any result is removed at the end.

    Attributes:
        done: keys of the lines that have a result.
        num_errors: the number of results with an error.

    Raises:
        InvalidConfigError: the file cannot be written, or another run writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[str | int | None] = set()
        self.num_errors = 0
        self._synced_s = time.monotonic()
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InvalidConfigError(
                f"--output-file has its results in {str(path)!r}; allowed: in a folder to write to "
                f"({error.strerror})"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InvalidConfigError(
                f"--output-file has its results in {str(path)!r}, which another run writes; "
                "allowed: one run at a time"
            ) from None
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._sync()
        if not self.done:
            self.path.unlink(missing_ok=True)
        self._file.close()

    def add(self, result: BatchResult) -> None:
        """Append a result.

        Raises:
            InvalidConfigError: it cannot be written as a whole, such as to a full disk; none may follow.
        """
        line, reason = msgspec.json.encode(result) + b"\n", "no space is left"
        try:
            is_whole = self._file.write(line) == len(line)
        except OSError as error:
            is_whole, reason = False, str(error.strerror)
        if not is_whole:
            raise InvalidConfigError(
                f"--output-file has its results in {str(self.path)!r}; allowed: where there is room "
                f"({reason}); the same command goes on"
            )
        self._count(result)
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
        end = 0
        with self.path.open("rb") as file:
            for line in file:
                try:
                    result = msgspec.json.decode(line, type=BatchResult)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    break
                if not line.endswith(b"\n"):
                    break
                self._count(result)
                end += len(line)
        self._file.truncate(end)

    def _count(self, result: BatchResult) -> None:
        self.done.add(result.key)
        self.num_errors += result.error is not None

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced_s = time.monotonic()
