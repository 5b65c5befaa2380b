"""HTTP at a Unix socket: taken, replaced, given back; clients that leave are noticed there too."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from baton_core.errors import InvalidConfigError
from baton_router.http.connections.server import HttpServer, listen_on
from tests.unit.router.served_app import POST, QUICK, rest_of

pytestmark = pytest.mark.slow

UNFINISHED = POST + b"Content-Length: 2\r\n\r\n{}"


class Waiting:
    """An application that answers once `go_on` is set, and notes whose client is gone."""

    def __init__(self) -> None:
        self.go_on, self.has_begun, self.is_gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        self.has_begun.set()
        leaving = asyncio.ensure_future(receive())
        going_on = asyncio.ensure_future(self.go_on.wait())
        done, rest = await asyncio.wait((leaving, going_on), return_when=asyncio.FIRST_COMPLETED)
        for each in rest:
            each.cancel()
        if leaving in done:
            self.is_gone.set()
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})


@asynccontextmanager
async def asked(path: Path, app: Waiting) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection whose request waits for its answer."""
    server = HttpServer()
    server.bind_path(str(path))
    await server.start(app, root_path="", limits=QUICK)
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(UNFINISHED)
        await app.has_begun.wait()
        yield reader, writer
        writer.close()
    finally:
        await server.stop(0)


async def test_a_client_that_ends_its_side_gets_its_answer(tmp_path: Path) -> None:
    app = Waiting()
    async with asked(tmp_path / "http", app) as (reader, writer):
        writer.write_eof()
        await asyncio.sleep(0.6)  # longer than it takes to look for a client that is gone
        app.go_on.set()
        assert (await rest_of(reader)).endswith(b"\r\n\r\ndone")
    assert list(tmp_path.iterdir()) == []


async def test_a_client_that_is_gone_is_noticed(tmp_path: Path) -> None:
    app = Waiting()
    async with asked(tmp_path / "http", app) as (_, writer):
        writer.close()
        await app.is_gone.wait()


def test_a_socket_that_nobody_serves_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "http")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)
    with listen_on(path), pytest.raises(InvalidConfigError, match=r"^--uds is .* \(Address already in use\)"):
        listen_on(path)
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(InvalidConfigError, match=r"^--uds is "):
        listen_on(str(file))
    assert file.read_text() == "kept"
    with pytest.raises(
        InvalidConfigError, match=r"^--uds is .* \(No such file or directory\); allowed: a path"
    ):
        listen_on(str(tmp_path / "no" / "http"))
