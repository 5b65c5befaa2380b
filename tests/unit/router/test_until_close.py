"""Responses that end their connection: without a length over HTTP/1.0, or before a body is asked for."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from baton_router.http.bodies import read_body
from baton_router.http.errors import HttpError
from baton_router.streams.memory import BodyMemory, BodyReservation
from tests.unit.router.served_app import BODY, POST, connected, rest_of, serving

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


async def up_to_four_bytes(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the status alone."""
    status = 200
    if scope["method"] == "POST":
        try:
            await read_body(receive, Headers(scope=scope), 4, BodyReservation(BodyMemory()))
        except HttpError as error:
            status = error.status
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def test_a_body_that_is_refused_is_not_asked_for() -> None:
    async with serving(up_to_four_bytes) as server, connected(server) as (reader, writer):
        asking = POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        writer.write(asking % 4)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"1234")
        accepted = await reader.readuntil(b"\r\n\r\n")
        assert accepted.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" not in accepted
        writer.write(asking % 5)
        refused = await rest_of(reader)
        assert refused.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in refused
    async with serving(up_to_four_bytes) as server, connected(server) as (reader, writer):
        writer.write(asking % 2**23 + bytes(2**23))
        await writer.drain()
        refused = await rest_of(reader)
        assert refused.startswith(b"HTTP/1.1 413 ")
