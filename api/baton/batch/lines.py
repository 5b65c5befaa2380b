"""The lines of a batch file, in OpenAI's format: `{"custom_id", "method": "POST", "url", "body"}`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from baton_core.errors import InvalidConfigError, InvalidRequestError, shown_briefly

_URL: Final = re.compile(r"/v\d+(/[A-Za-z0-9_-]+)+|/(score|rerank|pooling|classify|tokenize|detokenize)")
_URLS: Final = "the path of a route that takes JSON, such as /v1/chat/completions"


class BatchRequest(msgspec.Struct, kw_only=True):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]

    @property
    def key(self) -> str:
        """The name under which its result is found."""
        return self.custom_id


class _Named(msgspec.Struct):
    custom_id: str


@dataclass(frozen=True, slots=True)
class WrongLine:
    """A line that is no request, and why; `number` counts from 1."""

    number: int
    custom_id: str | None
    message: str

    @property
    def key(self) -> str | int:
        """The name under which its result is found: its number where it has no id."""
        return self.number if self.custom_id is None else self.custom_id


def read_lines(path: Path) -> Iterator[BatchRequest | WrongLine]:
    """Yield what each line of a file asks for, without the empty ones.

    Raises:
        InvalidConfigError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield read_line(number, line)
    except OSError as error:
        raise InvalidConfigError(
            f"--input-file is {str(path)!r}; allowed: a file of requests ({error.strerror})"
        ) from None


def read_line(number: int, line: bytes) -> BatchRequest | WrongLine:
    """Return the request of a line, or why it is none."""
    try:
        request = msgspec.json.decode(line, type=BatchRequest)
        _check(request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidRequestError) as error:
        return WrongLine(number, _id_of(line), f"line {number}: {error}")
    return request


def _check(request: BatchRequest) -> None:
    if request.method != "POST":
        raise InvalidRequestError("method", request.method, "POST")
    if not _URL.fullmatch(request.url):
        raise InvalidRequestError("url", request.url, _URLS)
    if request.body.get("stream"):
        raise InvalidRequestError("body.stream", request.body["stream"], "false")


def _id_of(line: bytes) -> str | None:
    try:
        return msgspec.json.decode(line, type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def count_lines(path: Path) -> int:
    """Return how many lines a file has, without the empty ones.

    Raises:
        InvalidConfigError: it cannot be read, has none, or two of one custom_id.
    """
    seen: set[str | int] = set()
    for line in read_lines(path):
        if line.key in seen:
            raise InvalidConfigError(
                f"--input-file is {str(path)!r}, where custom_id is {shown_briefly(line.key)} on two lines; "
                "allowed: another one on each line"
            )
        seen.add(line.key)
    if not seen:
        raise InvalidConfigError(f"--input-file is {str(path)!r}; allowed: a file with requests")
    return len(seen)


def digest_of(path: Path) -> str:
    """Return 8 hexadecimal digits that tell a file from others."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:8]
