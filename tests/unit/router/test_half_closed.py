"""A client that ends its side of the connection gets its answers; one that is gone is noticed."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
from contextlib import AsyncExitStack

import pytest
from starlette.types import Receive, Scope, Send

from baton_router.http.connections import half_closed
from tests.unit.router.served_app import GET, POST, Server, connected, rest_of, serving

pytestmark = pytest.mark.slow

FIRST, SECOND = b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n"
WHOLE_POST = POST + b"Content-Length: 2\r\n\r\n{}"
NUM_PARTS = 20


class Streaming:
    """An application that streams its answer once `go_on` is set, and notes who has hung up."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.go_on = asyncio.Event()
        if not is_held:
            self.go_on.set()
        self.num_begun = 0
        self.num_gone = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        self.num_begun += 1
        if not await self._is_wanted(receive):
            self.num_gone += 1
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(NUM_PARTS):
            body = f"{scope['path']} {number};".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0.005)
        await send({"type": "http.response.body", "body": b""})

    async def _is_wanted(self, receive: Receive) -> bool:
        """Wait until the answer may begin, or the client is gone."""
        leaving = asyncio.ensure_future(receive())
        going_on = asyncio.ensure_future(self.go_on.wait())
        done, waiting = await asyncio.wait((leaving, going_on), return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        return going_on in done

    async def until(self, *, num_begun: int = 0, num_gone: int = 0) -> None:
        async with asyncio.timeout(30):
            while self.num_begun < num_begun or self.num_gone < num_gone:  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0.01)


def parts_of(said: bytes) -> list[bytes]:
    return re.findall(rb"/\w* \d+;", said)


def parts(path: bytes) -> list[bytes]:
    return [b"%b %d;" % (path, number) for number in range(NUM_PARTS)]


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (FIRST, [b"/first"]),
        (WHOLE_POST, [b"/"]),
        (FIRST + SECOND, [b"/first", b"/second"]),
        (FIRST + SECOND[:-2], [b"/first"]),
        (FIRST.replace(b"1.1", b"1.0"), [b"/first"]),
    ],
    ids=["get", "post", "two", "one and a part of a head", "1.0"],
)
@pytest.mark.parametrize("is_apart", [False, True])
async def test_who_sends_no_more_gets_whole_answers(
    sent: bytes, answered: list[bytes], is_apart: bool
) -> None:
    streaming = Streaming()
    async with serving(streaming) as server, connected(server) as (reader, writer):
        writer.write(sent)
        if is_apart:
            await streaming.until(num_begun=1)
        writer.write_eof()
        assert parts_of(await rest_of(reader)) == [one for path in answered for one in parts(path)]
        await server.until_empty()


@pytest.mark.parametrize(
    "sent", [b"", GET, POST + b"Content-Length: 9\r\n\r\n{}"], ids=["none", "head", "body"]
)
async def test_who_sends_no_whole_request_is_hung_up_on(sent: bytes) -> None:
    async with serving(Streaming()) as server, connected(server) as (reader, writer):
        writer.write(sent)
        writer.write_eof()
        assert await rest_of(reader) == b""
        await server.until_empty()


async def test_an_answer_that_takes_its_time_is_announced_to_who_sends_no_more() -> None:
    """Python's own client skips the interim response, too."""

    def ask(server: Server) -> bytes:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        client.request("GET", "/first")
        client.sock.shutdown(socket.SHUT_WR)
        answer = client.getresponse().read()
        client.close()
        return answer

    streaming = Streaming(is_held=True)
    async with serving(streaming) as server:
        async with connected(server) as (reader, writer):
            asking = asyncio.create_task(asyncio.to_thread(ask, server))
            writer.write(FIRST)
            writer.write_eof()
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            streaming.go_on.set()
            assert parts_of(await rest_of(reader)) == parts(b"/first")
        assert parts_of(await asking) == parts(b"/first")


async def test_nothing_is_put_into_an_answer_that_another_one_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(half_closed, "_CHECK_EVERY_S", 0.05)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # with which the server goes on reading
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(NUM_PARTS):
            body = f"{scope['path']} {number};".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b""})

    async with serving(slow) as server, connected(server) as (reader, writer):
        writer.write(FIRST + SECOND)
        writer.write_eof()
        said = await rest_of(reader)
        assert parts_of(said) == [*parts(b"/first"), *parts(b"/second")]
        assert b" 100 " not in said


@pytest.mark.parametrize("behind", [b"", SECOND, SECOND[:-2]])
@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
async def test_who_closes_the_connection_is_noticed_before_the_answer_begins(
    is_reset: bool, is_apart: bool, behind: bytes
) -> None:
    streaming = Streaming(is_held=True)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(streaming))
        _, writer = await stack.enter_async_context(connected(server))
        writer.write(FIRST if is_apart else FIRST + behind)
        await streaming.until(num_begun=1)
        if is_apart:
            writer.write(behind)
            await asyncio.sleep(0.1)
        if is_reset:
            writer.transport.abort()
        else:
            writer.close()
        await streaming.until(num_gone=1)
        await server.until_empty()
        streaming.go_on.set()


async def test_who_closes_the_connection_is_noticed_amid_the_answer() -> None:
    going = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while scope["path"] != "/" and not going.is_set():
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            if (await asyncio.wait((leaving := asyncio.ensure_future(receive()),), timeout=0.02))[0]:
                if leaving.result()["type"] == "http.disconnect":
                    going.set()
            else:
                leaving.cancel()
        await send({"type": "http.response.body", "body": b""})

    async with serving(endless) as server, connected(server) as (reader, writer):
        writer.write(FIRST)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await asyncio.wait_for(going.wait(), 30)


async def test_who_hangs_up_with_another_request_waiting_ends_the_one_that_is_answered() -> None:
    num_gone = 0

    async def stream_on(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_gone
        await receive()
        leaving = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await asyncio.sleep(0.005)
        num_gone += 1

    async with serving(stream_on) as server:
        async with connected(server) as (reader, writer):
            writer.write(FIRST + FIRST)
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
            async with asyncio.timeout(30):
                while not num_gone:  # noqa: ASYNC110 (nothing tells)
                    await asyncio.sleep(0.01)
        await server.until_empty()
        assert num_gone == 1
