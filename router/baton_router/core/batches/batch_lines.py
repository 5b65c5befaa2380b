"""The lines of a batch file, in OpenAI's format: `{"custom_id", "method": "POST", "url", "body"}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from baton_core.errors import InvalidRequestError, in_json_words, shown_briefly

MAX_CUSTOM_ID_CHARACTERS: Final = 512
MAX_ERRORS: Final = 100
"""Errors of a batch that are told."""
_NULL: Final = b"null"
_FALSE: Final = msgspec.Raw(b"false")
_URL: Final = re.compile(r"/v\d+(/[A-Za-z0-9_-]+)+|/(score|rerank|pooling|classify|tokenize|detokenize)")
_URLS: Final = "the path of a route that takes JSON, such as /v1/chat/completions"


class BatchRequest(msgspec.Struct, kw_only=True):
    """One request of a batch; `body` is the JSON of an object."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw

    @property
    def key(self) -> str:
        """The name under which its result is found."""
        return self.custom_id

    def body_with(self, defaults: Mapping[str, Any]) -> bytes:
        """Return its body with these fields where it does not name them, or says null."""
        named = msgspec.json.decode(self.body, type=dict[str, msgspec.Raw]) if defaults else {}
        lacking = {name: value for name, value in defaults.items() if bytes(named.get(name, _NULL)) == _NULL}
        return msgspec.json.encode(named | lacking) if lacking else bytes(self.body)


class _Line(msgspec.Struct, kw_only=True):
    custom_id: str
    method: str
    url: str
    body: dict[str, msgspec.Raw]


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


def read_line(number: int, line: bytes) -> BatchRequest | WrongLine:
    """Return the request of a line, or why it is none."""
    try:
        _check(msgspec.json.decode(line, type=_Line))
        return msgspec.json.decode(line, type=BatchRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidRequestError) as error:
        return WrongLine(number, _id_of(line), f"line {number}: {in_json_words(str(error))}")


def _check(line: _Line) -> None:
    if not 1 <= len(line.custom_id) <= MAX_CUSTOM_ID_CHARACTERS:
        allowed = f"1 to {MAX_CUSTOM_ID_CHARACTERS} characters"
        raise InvalidRequestError("custom_id", line.custom_id, allowed)
    if line.method != "POST":
        raise InvalidRequestError("method", line.method, "POST")
    if not _URL.fullmatch(line.url):
        raise InvalidRequestError("url", line.url, _URLS)
    for name in ("stream", "background"):
        value = line.body.get(name, _FALSE)
        if msgspec.json.decode(value, type=bool | None, strict=False):
            raise InvalidRequestError(f"body.{name}", msgspec.json.decode(value), "false")


def _id_of(line: bytes) -> str | None:
    try:
        return msgspec.json.decode(line, type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class LineError(msgspec.Struct, kw_only=True):
    """An error of a batch, as OpenAI's `errors.data` has it; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class InputChecks:
    """Checks the lines of a batch one by one before any of them is sent.

    Args:
        endpoint: the route of all lines.
        max_lines: the most that a batch may have.

    Attributes:
        num_lines: the lines so far.
        errors: what is wrong with them, the first ones.
    """

    def __init__(self, endpoint: str, max_lines: int) -> None:
        self.num_lines = 0
        self.errors: list[LineError] = []
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._seen: set[str] = set()

    @property
    def is_over(self) -> bool:
        """True if no further line need be read."""
        return self.num_lines > self._max_lines or len(self.errors) >= MAX_ERRORS

    def add(self, number: int, read: BatchRequest | WrongLine) -> None:
        """Check the next line, whose number counts from 1."""
        self.num_lines += 1
        if self.num_lines > self._max_lines:
            text = f"lines is over {self._max_lines}; allowed: at most that many (--max-batch-lines)"
            self.errors.append(LineError(code="too_many_lines", message=text, line=number))
        elif isinstance(read, WrongLine):
            self.errors.append(LineError(code="invalid_line", message=read.message, line=number))
        elif read.url != self._endpoint:
            text = f"url is {shown_briefly(read.url)}; allowed: {self._endpoint}, the endpoint of the batch"
            self.errors.append(LineError(code="mismatched_url", message=text, param="url", line=number))
        elif read.custom_id in self._seen:
            text = f"custom_id is {shown_briefly(read.custom_id)} on two lines; allowed: another one on each"
            error = LineError(code="duplicate_custom_id", message=text, param="custom_id", line=number)
            self.errors.append(error)
        else:
            self._seen.add(read.custom_id)

    def end(self) -> None:
        """Refuse a file without lines."""
        if not self.num_lines:
            text = "the file is empty; allowed: a file with requests"
            self.errors.append(LineError(code="empty_file", message=text, param="input_file_id"))
