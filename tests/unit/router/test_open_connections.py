"""A server that is full ends the connections that are missed least, and serves the others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from ssl import SSLContext

from starlette.types import Receive, Scope, Send

from baton_router.http.connections.open_connections import GRACE_S, OpenConnections, Stage
from baton_service.tls import ClientTls, ServerTls
from tests.certificates import Authority, needs_openssl
from tests.unit.router.served_app import BODY, GET, QUICK, Streams, connected, rest_of, serving

PATIENT = replace(QUICK, header_timeout_s=60.0, idle_timeout_s=60.0)
"""Limits within which nothing ends but by eviction."""


class Connection:
    def __init__(self, *, has_unsent: bool = False) -> None:
        self.is_evicted = False
        self.has_unsent = has_unsent

    def evict(self) -> None:
        self.is_evicted = True


def test_silent_ones_go_first_then_idle_ones_then_those_without_a_whole_request() -> None:
    now_s = 0.0
    table = OpenConnections(6, lambda: now_s)
    kept, reading, idle, later_idle, silent, later_silent = connections = [Connection() for _ in range(6)]
    for connection in connections:
        assert table.add(connection)
    table.move(kept, Stage.ANSWERING)
    table.move(reading, Stage.READING)
    table.move(idle, Stage.IDLE)
    table.move(later_idle, Stage.IDLE)
    now_s = GRACE_S
    for gone in (silent, later_silent, idle, later_idle, reading):
        newest = Connection()
        assert not gone.is_evicted
        assert table.add(newest)
        assert gone.is_evicted
        table.move(newest, Stage.ANSWERING)
        assert len(table) == 6
    assert not table.add(Connection())
    assert not kept.is_evicted


def test_idle_ones_go_before_those_that_have_just_come() -> None:
    table = OpenConnections(4, lambda: 0.0)
    unsent, idle, first, second = Connection(has_unsent=True), *(Connection() for _ in range(3))
    for connection in (unsent, idle, first, second):
        table.add(connection)
    table.move(unsent, Stage.IDLE)
    table.move(idle, Stage.IDLE)
    for gone in (idle, first, second):
        assert not gone.is_evicted
        newest = Connection()
        assert table.add(newest)
        assert gone.is_evicted
        table.move(newest, Stage.ANSWERING)
    assert not unsent.is_evicted
    assert table.add(Connection())
    assert unsent.is_evicted


def test_one_that_was_removed_is_not_evicted() -> None:
    table = OpenConnections(1)
    first, second = Connection(), Connection()
    table.add(first)
    table.remove(first)
    table.remove(first)
    table.move(first, Stage.IDLE)
    assert table.add(second)
    assert not first.is_evicted
    assert len(table) == 1


class Held:
    """An application that answers GET / once `go_on` is set, and every other path at once."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.num_held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/held":
            self.num_held += 1
            await self.go_on.wait()
        headers = [(b"content-length", b"%d" % len(BODY))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY})

    async def until_held(self, number: int) -> None:
        async with asyncio.timeout(30):
            while self.num_held < number:  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0.01)


async def is_answered(streams: Streams) -> bool:
    reader, writer = streams
    writer.write(GET + b"\r\n")
    try:
        return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    except ConnectionError:
        return False


def contexts(folder: Path) -> tuple[SSLContext, SSLContext]:
    """Return the TLS of a server, and that of clients who trust it."""
    authority = Authority.make(folder)
    pair = authority.issue("router")
    server = ServerTls(certfile=pair.certfile, keyfile=pair.keyfile).http_context()
    return server, ClientTls(ca_certs=authority.own.certfile).client_context()


async def test_a_client_is_served_beside_many_that_say_nothing() -> None:
    held = Held()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(held, PATIENT))
        reader, writer = await stack.enter_async_context(connected(server))
        writer.write(GET.replace(b"/", b"/held", 1) + b"\r\n")
        await held.until_held(1)
        for _ in range(100):
            await stack.enter_async_context(connected(server))
        assert await is_answered(await stack.enter_async_context(connected(server)))
        assert server.num_connections <= PATIENT.max_connections
        held.go_on.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_one_more_than_are_being_answered_is_hung_up_on() -> None:
    held = Held()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(held, PATIENT))
        others = [await stack.enter_async_context(connected(server)) for _ in range(8)]
        for _, writer in others:
            writer.write(GET.replace(b"/", b"/held", 1) + b"\r\n")
        await held.until_held(8)
        assert not await is_answered(await stack.enter_async_context(connected(server)))
        held.go_on.set()
        for reader, writer in others:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        await server.until_empty()


@needs_openssl
async def test_unfinished_handshakes_of_tls_are_evicted_too(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(Held(), PATIENT, *contexts(tmp_path)))
        silent = [await stack.enter_async_context(connected(server, is_raw=True)) for _ in range(40)]
        async with asyncio.timeout(30):
            for reader, _ in silent[: 40 - PATIENT.max_connections]:
                assert await rest_of(reader) == b""
        assert await is_answered(await stack.enter_async_context(connected(server)))


@needs_openssl
async def test_a_connection_of_tls_that_was_closed_twice_is_ended_without_an_error(tmp_path: Path) -> None:
    async with serving(Held(), PATIENT, *contexts(tmp_path)) as server:
        async with connected(server) as streams:
            assert await is_answered(streams)
            (connection,) = server.connections
            connection.transport.close()
            connection.transport.close()
            assert not connection.has_unsent
            connection.evict()
        await server.until_empty()
