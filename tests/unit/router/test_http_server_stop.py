"""An HTTP server that stops cuts off the calls that do not end, without errors in its log."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.types import Receive, Scope, Send

from baton_router.http.connections.server import HttpServer
from baton_router.process.http_settings import ConnectionLimits

HEAD = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n"
WITHIN_S = 10.0


async def test_a_call_whose_body_has_not_come_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    received: list[str] = []

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        while "http.disconnect" not in received:
            received.append((await receive())["type"])

    server = HttpServer()
    server.bind("127.0.0.1", 0)
    await server.start(read, root_path="", limits=ConnectionLimits())
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HEAD + b"{")
    async with asyncio.timeout(WITHIN_S):
        while not received:  # noqa: ASYNC110 (the app is what tells)
            await asyncio.sleep(0.01)
        await server.stop(0.05)
    assert received == ["http.request", "http.disconnect"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    writer.close()


async def test_a_call_that_does_not_notice_is_cancelled() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def stay(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        try:
            await asyncio.sleep(WITHIN_S)
        finally:
            ended.set()

    server = HttpServer()
    server.bind("127.0.0.1", 0)
    await server.start(stay, root_path="", limits=ConnectionLimits())
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HEAD)
    async with asyncio.timeout(WITHIN_S / 2):
        await begun.wait()
        await server.stop(0.05)
    assert ended.is_set()
    writer.close()
