"""Reads and decodes the bodies of requests: bounded in size and time, strictly typed."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from baton_core.errors import InvalidRequestError, RequestError
from baton_router.http.errors import HttpError
from baton_router.streams.body_memory import BodyReservation

BodyT = TypeVar("BodyT")
READ_WITHIN_S: Final = 60.0
_LINGER_S: Final = 1.0
"""Time for which the rest of a refused body is read and dropped, so that its client reads the refusal."""
_MAX_LISTS: Final = 2**19
"""Lists and objects of a body."""
_MAX_STRINGS: Final = 2**18
"""Strings of a body, the names in objects included."""
_AT: Final = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")


async def read_body(receive: Receive, headers: Headers, max_bytes: int, room: BodyReservation) -> bytes:
    """Return the whole body of a request.

    Raises:
        RequestError: UNAVAILABLE, bodies of others leave no room in memory.
        HttpError: 413, it is larger than `max_bytes`; 415, it is no JSON; 408, it takes too long.
        ClientDisconnect: the client is gone.
    """
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "unsupported_media_type", f"content-type is {kind!r}; allowed: application/json")
    length = headers.get("content-length", "0")
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            if length.isdecimal() and len(length) < 20 and int(length) <= max_bytes:
                return await _read(receive, max_bytes, room)
    except TimeoutError:
        raise HttpError(408, "request_timeout", f"no whole body within {READ_WITHIN_S:g} s") from None
    await _drop(receive)
    raise _too_large(max_bytes)


def decode_body(body: bytes, decoder: msgspec.json.Decoder[BodyT]) -> BodyT:
    """Return the body as its route's type.

    Raises:
        InvalidRequestError: it is no JSON, or has a field that is unknown, missing or of another type.
    """
    _check_shape(body)
    try:
        with _without_collections():
            return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError("body", body[:60], f"JSON in UTF-8 ({error})") from None
    except RecursionError:
        raise nested_too_deeply() from None


def _check_shape(body: bytes) -> None:
    """Refuse bodies of a great many small values, which take much time and memory for their length.

    Brackets in texts count too, and no text has so many; quotation marks in texts are escaped, and do not.
    """
    if len(body) < _MAX_STRINGS:
        return
    num_lists = body.count(b"{") + body.count(b"[")
    if num_lists > _MAX_LISTS:
        raise InvalidRequestError("body", f"JSON with {num_lists} brackets", f"at most {_MAX_LISTS}")
    num_strings = (body.count(b'"') - body.count(b'\\"')) // 2
    if num_strings > _MAX_STRINGS:
        raise InvalidRequestError("body", f"JSON with {num_strings} strings", f"at most {_MAX_STRINGS}")


@contextmanager
def _without_collections() -> Iterator[None]:
    """Decode without the garbage collector, which would traverse all objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def nested_too_deeply() -> InvalidRequestError:
    """Return the refusal of a body that this process's stack cannot hold."""
    return InvalidRequestError("body", "nested too deeply", "JSON with fewer levels")


async def _read(receive: Receive, max_bytes: int, room: BodyReservation) -> bytes:
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > max_bytes:
            if message.get("more_body", False):
                await _drop(receive)
            raise _too_large(max_bytes)
        try:
            room.add(len(parts[-1]))
        except RequestError:
            parts.clear()
            if message.get("more_body", False):
                await _drop(receive)
            raise
        if not message.get("more_body", False):
            return b"".join(parts)


async def _drop(receive: Receive) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            message = await receive()
            while message["type"] == "http.request" and message.get("more_body", False):
                message = await receive()


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, "request_too_large", f"the body is too large; allowed: at most {max_bytes} bytes")


class BodyFieldError(InvalidRequestError):
    """A field of a body that does not fit its type, with the decoder's message."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, None, message)
        self.args = (message,)


def _refusal(message: str) -> BodyFieldError:
    at = _AT.fullmatch(message)
    text, path = (at[1], at[2]) if at else (message, "")
    for pattern, what in ((_UNKNOWN, "unknown; allowed: the fields in /openapi.json"), (_MISSING, "missing")):
        if (found := pattern.fullmatch(text)) is not None:
            field = found[1] or "''"
            name = f"{path}.{field}" if path else field
            return BodyFieldError(name[:200], f"{name[:200]} is {what}")
    name = path or "body"
    return BodyFieldError(name, f"{name} is of the wrong type or out of range: {text[0].lower()}{text[1:]}")
