"""A client that sends what it is told to, byte by byte, and may hang up at any time."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from tests.e2e.fuzzed_calls import HttpCall

_CHUNK_BYTES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """A response as it came back."""

    status: int
    content_type: str
    content: bytes


def send(address: str, call: HttpCall, within_s: float) -> HttpAnswer | None:
    """Make a call; None where the client hangs up.

    Raises:
        TimeoutError: nothing came for `within_s`.
        OSError, http.client.HTTPException: the server hung up, or its answer is no HTTP.
    """
    with closing(http.client.HTTPConnection(address, timeout=within_s)) as connection:
        connection.putrequest(call.method, call.target)
        for name, value in _headers(call):
            connection.putheader(name, value.encode("latin-1"))
        connection.endheaders()
        with suppress(BrokenPipeError, ConnectionResetError):  # it may refuse before it has read everything
            for part in _parts(call):
                connection.send(part)
        if call.sends_bytes is not None or call.reads_bytes == 0:
            return None
        response = connection.getresponse()
        if call.reads_bytes is not None:
            response.read(call.reads_bytes)
            return None
        kind = response.headers.get_content_type()
        return HttpAnswer(status=response.status, content_type=kind, content=response.read())


def _headers(call: HttpCall) -> Iterator[tuple[str, str]]:
    yield from call.headers
    if call.content is not None and call.is_chunked:
        yield "transfer-encoding", "chunked"
    elif call.content is not None:
        yield "content-length", str(len(call.content))


def _parts(call: HttpCall) -> Iterator[bytes]:
    content = (call.content or b"")[: call.sends_bytes]
    if not call.is_chunked:
        yield content
        return
    for place in range(0, len(content), _CHUNK_BYTES):
        chunk = content[place : place + _CHUNK_BYTES]
        yield b"%x\r\n%b\r\n" % (len(chunk), chunk)
    if call.sends_bytes is None:
        yield b"0\r\n\r\n"
