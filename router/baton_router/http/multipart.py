"""Reads a body of multipart/form-data (RFC 7578) as it comes: bytes in, events out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from baton_core.errors import InvalidRequestError

MAX_HEADER_BYTES: Final = 4096
"""Headers of a part."""
MAX_PARTS: Final = 32
_KIND: Final = "multipart/form-data"
_BOUNDARY: Final = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"content-disposition:\s*form-data\s*((?:;.*)?)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb';\s*(name|filename\*?)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))', re.IGNORECASE)
_ESCAPED: Final = re.compile(r'\\(["\\])')
_QUOTED: Final = {"%22": '"', "%0D": "\r", "%0A": "\n"}
_END: Final = b"--"


@dataclass(frozen=True, slots=True)
class Part:
    """A part begins: a field, or with `filename` a file.

    With both `filename*` counts (RFC 6266, 4.3): .NET's clients encode the other one as mail does.
    """

    name: str
    filename: str | None


class MultipartReader:
    """Reads one body. What follows its end is dropped.

    Raises:
        InvalidRequestError: `content_type` is not that of a form.
    """

    def __init__(self, content_type: str) -> None:
        kind, boundary = content_type.partition(";")[0].strip().lower(), _BOUNDARY.search(content_type)
        if kind != _KIND or boundary is None or not boundary[0].isascii():
            allowed = f"{_KIND}; boundary=TEXT, with at most 70 ASCII characters"
            raise InvalidRequestError("content-type", content_type, allowed)
        self.is_over = False
        self._delimiter = b"\r\n--" + (boundary[1] or boundary[2]).encode()
        self._rest = bytearray(b"\r\n")
        """Bytes that are not read: the line break may begin the first delimiter."""
        self._is_in_part = False
        self._has_begun = False
        self._num_parts = 0

    def feed(self, data: bytes) -> Iterator[Part | bytes]:
        """Yield what the next bytes of the body say: a part that begins, or bytes of the one that began last.

        Raises:
            InvalidRequestError: they are no part.
        """
        if not self.is_over:
            self._rest += data
        while not self.is_over:
            if self._is_in_part or not self._has_begun:
                content, is_whole = self._content()
                if content and self._has_begun:
                    yield content
                if not is_whole:
                    return
                self._is_in_part, self._has_begun = False, True
            if self._rest.startswith(_END):
                self.is_over = True
            elif (part := self._head()) is not None:
                self._is_in_part = True
                yield part
            else:
                return

    def close(self) -> None:
        """Refuse a body that is not whole.

        Raises:
            InvalidRequestError: its end did not come.
        """
        if not self.is_over:
            raise InvalidRequestError("body", "cut off", "a form that ends with its boundary and --")

    def _content(self) -> tuple[bytes, bool]:
        """Take the bytes before the next delimiter; False if it has not come, and may have begun."""
        place = self._rest.find(self._delimiter)
        end = place if place >= 0 else max(0, len(self._rest) - len(self._delimiter) + 1)
        content = bytes(self._rest[:end])
        del self._rest[: end + (len(self._delimiter) if place >= 0 else 0)]
        return content, place >= 0

    def _head(self) -> Part | None:
        """Take the headers behind a delimiter; None if they are not all there."""
        end = self._rest.find(b"\r\n\r\n")
        if end > MAX_HEADER_BYTES or (end < 0 and len(self._rest) > MAX_HEADER_BYTES):
            allowed = f"at most {MAX_HEADER_BYTES} bytes"
            raise InvalidRequestError("body", "a part with longer headers", allowed)
        if end < 0:
            return None
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequestError("body", f"over {MAX_PARTS} parts", f"at most {MAX_PARTS}")
        head = bytes(self._rest[:end])
        del self._rest[: end + 4]
        for line in head.split(b"\r\n"):
            if (found := _DISPOSITION.fullmatch(line.strip())) is not None:
                return _part(found[1])
        raise InvalidRequestError("body", head, "parts with Content-Disposition: form-data")


def _part(parameters: bytes) -> Part:
    given: dict[str, str] = {}
    for name, quoted, plain in _PARAMETER.findall(parameters):
        text = _ESCAPED.sub(r"\1", (quoted or plain).decode(errors="replace"))
        if name.endswith(b"*"):
            text = unquote(text.split("'", 2)[-1])
        for escaped, character in _QUOTED.items():
            text = text.replace(escaped, character)
        given.setdefault(name.decode().lower(), text)
    if "name" not in given:
        raise InvalidRequestError("body", parameters, "parts with a name")
    return Part(given["name"], given.get("filename*", given.get("filename")))
