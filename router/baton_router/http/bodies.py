"""Reads and decodes the bodies of requests: bounded in size and time, typed as lenient clients type them."""

from __future__ import annotations

import asyncio
import gc
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from typing import Final, Generic, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from baton_core.errors import InvalidRequestError, RequestError
from baton_router.http.body_refusals import is_of_unknown_field, refusal_of
from baton_router.http.errors import HttpError
from baton_router.http.ignored_fields import Removal, TooManyStepsError, shapes_of
from baton_router.streams.memory import BodyReservation

BodyT = TypeVar("BodyT")
READ_WITHIN_S: Final = 60.0
_LINGER_S: Final = 1.0
"""Time for which the rest of a refused body is read and dropped, so that its client reads the refusal."""
_HALF_PAIR: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F])",
    re.DOTALL,
)
_MAX_LISTS: Final = 2**19
"""Lists and objects of a body."""
_MAX_STRINGS: Final = 2**18
"""Strings of a body, the names in objects included."""


async def read_body(receive: Receive, headers: Headers, max_bytes: int, room: BodyReservation) -> bytes:
    """Return the whole body of a request.

    Raises:
        RequestError: UNAVAILABLE, bodies of others leave no room in memory.
        HttpError: 413, it is larger than `max_bytes`; 415, it is compressed or no JSON;
            408, it takes too long.
        ClientDisconnect: the client is gone.
    """
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "unsupported_media_type", f"content-type is {kind!r}; allowed: application/json")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        allowed = "identity: bodies are sent uncompressed"
        raise HttpError(
            415, "unsupported_media_type", f"content-encoding is {encoding!r}; allowed: {allowed}"
        )
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            if is_declared_within(headers, max_bytes):
                return await _read(receive, max_bytes, room)
    except TimeoutError:
        raise HttpError(408, "request_timeout", f"no whole body within {READ_WITHIN_S:g} s") from None
    if headers.get("expect", "").lower() != "100-continue":  # its client would be asked for the body
        await drop_body(receive)
    raise too_large(max_bytes)


def is_declared_within(headers: Mapping[str, str], max_bytes: int) -> bool:
    """Return True unless the headers of a request declare a body of more bytes."""
    length = headers.get("content-length", "0")
    return length.isdecimal() and len(length) < 20 and int(length) <= max_bytes


class BodyDecoder(Generic[BodyT]):
    """Decodes the bodies of one route."""

    def __init__(self, kinds: Sequence[type[BodyT]], *, is_strict: bool) -> None:
        """`kinds`: the types that a body may have; it has the first whose required fields it has, and
        one of its `one_of`, where it has that.

        `is_strict`: fields that none of them knows are refused.
        """
        self._kinds = [_Kind(kind) for kind in kinds]
        self._is_strict = is_strict

    def decode(self, body: bytes) -> tuple[BodyT, Removal]:
        """Return the body as its type, and the fields that are ignored.

        Numbers and truth values may be written as texts, and whole numbers with a fraction of 0. One byte
        order mark before the JSON is skipped.

        Raises:
            InvalidRequestError: it is no JSON, or has a field that is missing, of another type, or, in a
                strict route, unknown.
        """
        body = body.removeprefix(BOM_UTF8)
        _check_shape(body)
        kind = self._kinds[0]
        try:
            with _without_collections():
                kind = self._choose(body)
                return self._decode(kind, body)
        except msgspec.ValidationError as error:
            raise refusal_of(str(error), body, kind.body) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = "a text has half a surrogate pair" if _HALF_PAIR.search(body) else str(error)
            raise InvalidRequestError("body", body[:60], f"JSON in UTF-8 ({reason})") from None
        except RecursionError:
            raise nested_too_deeply() from None

    def _decode(self, kind: _Kind[BodyT], body: bytes) -> tuple[BodyT, Removal]:
        removal = Removal()
        try:
            return kind.decoder.decode(body), removal
        except msgspec.ValidationError as error:
            if self._is_strict or not is_of_unknown_field(str(error)):
                raise
            _check_shape(body, times=2)
            values = msgspec.json.decode(body)
            try:
                removal.remove(values, kind.shapes)
            except TooManyStepsError:
                raise error from None
        return msgspec.convert(values, kind.body, strict=False), removal

    def _choose(self, body: bytes) -> _Kind[BodyT]:
        if len(self._kinds) == 1:
            return self._kinds[0]
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys()
        return next((kind for kind in self._kinds if kind.matches(given)), self._kinds[0])


class _Kind(Generic[BodyT]):
    """One type of bodies."""

    def __init__(self, body: type[BodyT]) -> None:
        self.body = body
        self.decoder = msgspec.json.Decoder(body, strict=False)
        self.shapes = shapes_of(body)
        fields = msgspec.structs.fields(body)  # type: ignore[arg-type]  # all bodies are structs
        self._required = {field.encode_name for field in fields if field.required}
        self._one_of: Set[str] = getattr(body, "one_of", frozenset())

    def matches(self, names: Set[str]) -> bool:
        """Return whether a body with these fields is of this type."""
        return self._required <= names and not (self._one_of and self._one_of.isdisjoint(names))


def _check_shape(body: bytes, *, times: int = 1) -> None:
    """Refuse bodies of a great many small values, which take much time and memory for their length.

    Brackets in texts count too, and no text has so many; quotation marks in texts are escaped, and do not.

    Args:
        times: how often the body is decoded; a second time leaves out unknown fields.
    """
    if len(body) < _MAX_STRINGS // times:
        return
    beside = " beside unknown fields" if times > 1 else ""
    num_lists = body.count(b"{") + body.count(b"[")
    if num_lists > (most := _MAX_LISTS // times):
        raise InvalidRequestError("body", f"JSON with {num_lists} brackets", f"at most {most}{beside}")
    num_strings = (body.count(b'"') - body.count(b'\\"')) // 2
    if num_strings > (most := _MAX_STRINGS // times):
        raise InvalidRequestError("body", f"JSON with {num_strings} strings", f"at most {most}{beside}")


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
                await drop_body(receive)
            raise too_large(max_bytes)
        try:
            room.add(len(parts[-1]))
        except RequestError:
            parts.clear()
            if message.get("more_body", False):
                await drop_body(receive)
            raise
        if not message.get("more_body", False):
            return b"".join(parts)


async def drop_body(receive: Receive) -> None:
    """Drop what comes of a refused body for a while, so that its client reads the refusal."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            message = await receive()
            while message["type"] == "http.request" and message.get("more_body", False):
                message = await receive()


def too_large(max_bytes: int) -> HttpError:
    """Return the refusal of a larger body."""
    return HttpError(413, "request_too_large", f"the body is too large; allowed: at most {max_bytes} bytes")
