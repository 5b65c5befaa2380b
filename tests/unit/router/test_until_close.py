"""Clients of HTTP/1.0 get no chunks: a body of unknown length ends with the connection."""

from __future__ import annotations

import pytest
from starlette.types import Receive, Scope, Send

from tests.unit.router.served_app import BODY, connected, rest_of, serving

PIECES = (b"one, ", b"two, ", b"three")


async def in_pieces(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without a length."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    for piece in PIECES:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("keep_alive", [b"", b"Connection: keep-alive\r\n"])
async def test_a_body_of_unknown_length_ends_with_the_connection(keep_alive: bytes) -> None:
    async with serving(in_pieces) as server, connected(server) as (reader, writer):
        writer.write(b"GET / HTTP/1.0\r\n" + keep_alive + b"\r\n")
        head, body = (await rest_of(reader)).split(b"\r\n\r\n", 1)
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        assert body == b"".join(PIECES)


async def test_a_body_of_known_length_says_it() -> None:
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        head, body = (await rest_of(reader)).split(b"\r\n\r\n", 1)
        assert b"content-length: %d" % len(BODY) in head
        assert body == BODY


async def test_newer_clients_get_chunks() -> None:
    async with serving(in_pieces) as server, connected(server) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        head, body = (await rest_of(reader)).split(b"\r\n\r\n", 1)
        assert b"transfer-encoding: chunked" in head
        assert body.endswith(b"0\r\n\r\n")
