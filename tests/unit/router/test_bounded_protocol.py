"""HTTP clients that are slow, idle, or send what never ends lose their connection; nobody else notices."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from baton_core.errors import InvalidConfigError
from baton_router.http import bodies
from baton_router.http.connections.bounded_protocol import MAX_PIPELINED
from baton_router.http.errors import HttpError
from baton_router.process.http_settings import ConnectionLimits
from baton_router.streams.memory import BodyMemory, BodyReservation
from tests.unit.router.served_app import BODY, CHUNKED, GET, POST, connected, rest_of, serving

pytestmark = pytest.mark.slow

PIECE = b"a" * 65_536
MUCH = 32 * 2**20
"""Bytes that no connection may hold, with all the buffers on the way."""


async def pour(writer: asyncio.StreamWriter) -> int:
    """Send without end; returns after how many bytes the server hung up."""
    num_sent = 0
    with suppress(ConnectionError):
        while num_sent < MUCH:
            writer.write(PIECE)
            await writer.drain()
            num_sent += len(PIECE)
    return num_sent


@pytest.mark.parametrize(
    "beginning",
    [
        GET + b"x: ",
        b"GET /",
        b"GET /?",
        b"GET / HTTP/1.1\r\n",
        CHUNKED + b"1\r\n{\r\n0\r\nx: ",
        CHUNKED + b"1;",
    ],
    ids=["value", "path", "query", "name", "trailer", "extension"],
)
async def test_what_never_ends_is_not_kept(beginning: bytes) -> None:
    async with serving() as server, connected(server) as (_, writer):
        writer.write(beginning)
        assert await pour(writer) < MUCH


@pytest.mark.parametrize("header", [b"a:\r\n", b"a: " + b"b" * 1000 + b"\r\n"], ids=["many", "large"])
async def test_too_large_headers_are_refused_with_431(header: bytes) -> None:
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(GET + header * 200 + b"\r\n")
        said = await rest_of(reader)
        assert said.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "headers_too_large")
        assert error["message"].endswith("allowed: at most 4096 bytes")


async def test_large_bodies_and_headers_that_fit_are_taken() -> None:
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(POST + b"a: " + b"b" * 3000 + b"\r\nContent-Length: 1000000\r\n\r\n" + b"c" * 10**6)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b""),
        (b"GET /", b"a"),
        (GET, b"a: b\r\n"),
        (GET + b"\r\n", b"\r\n"),
        (GET + b"Content-Length: 999\r\n\r\n", b"a"),
    ],
    ids=["silence", "line", "headers", "blank lines", "a body that nobody asked for"],
)
async def test_who_sends_no_request_loses_the_connection(first: bytes, drip: bytes) -> None:
    loop = asyncio.get_running_loop()
    async with serving() as server, connected(server) as (reader, writer):
        dripping, began = asyncio.create_task(keep_sending(writer, first, drip)), loop.time()
        await rest_of(reader)
        assert loop.time() - began > 0.25
        dripping.cancel()


async def keep_sending(writer: asyncio.StreamWriter, first: bytes, drip: bytes) -> None:
    writer.write(first)
    with suppress(ConnectionError):
        while True:
            await asyncio.sleep(0.05)
            writer.write(drip)
            await writer.drain()


async def test_an_idle_connection_is_closed_and_a_used_one_is_not() -> None:
    async with serving() as server, connected(server) as (reader, writer):
        for _ in range(3):
            writer.write(GET + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(BODY)) == BODY
            await asyncio.sleep(1.1)
        assert await rest_of(reader) == b""


async def test_who_takes_nothing_of_the_answers_loses_the_connection() -> None:
    async with serving() as server:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", server.port))
            deaf.sendall((GET + b"\r\n") * MAX_PIPELINED)
            async with asyncio.timeout(30):
                while not server.num_calls:  # noqa: ASYNC110 (nothing tells of it)
                    await asyncio.sleep(0.01)
            await server.until_empty()


async def test_too_many_requests_at_once_end_the_connection() -> None:
    async with serving() as server, connected(server) as (reader, writer):
        writer.write((GET + b"\r\n") * (MAX_PIPELINED + 2))
        refused = (await rest_of(reader)).partition(b"HTTP/1.1 400 ")[2]
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
        await server.until_empty()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n", b"400"),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n", b"400"),
        (b"GET / HTTP/1.0\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nHost:\r\n", b"200"),
    ],
)
async def test_a_request_names_its_host_once(head: bytes, status: bytes) -> None:
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(head + b"Connection: close\r\n\r\n")
        said = await rest_of(reader)
        assert said.startswith(b"HTTP/1.1 " + status)
        assert (b"host is given never or twice; allowed: one header Host" in said) is (status == b"400")


async def test_a_body_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "READ_WITHIN_S", 0.05)

    async def one_byte() -> Message:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"{", "more_body": True}

    with pytest.raises(HttpError, match=r"no whole body within 0.05 s") as caught:
        await bodies.read_body(
            one_byte, Headers({"content-length": "99"}), 1000, BodyReservation(BodyMemory())
        )
    assert caught.value.status == 408


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("max_connections", 0, "--max-connections is 0; allowed: 1 or more"),
        ("max_header_bytes", 10, "--max-header-bytes is 10; allowed: 1024 or more"),
        ("header_timeout_s", 0.0, "--header-timeout is 0.0; allowed: seconds, over 0"),
        ("idle_timeout_s", -1.0, "--idle-timeout is -1.0; allowed: seconds, over 0"),
        ("stall_timeout_s", float("nan"), "--stall-timeout is nan; allowed: seconds, over 0"),
    ],
)
def test_a_limit_that_is_none_is_refused(field: str, value: Any, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        ConnectionLimits(**{field: value})
