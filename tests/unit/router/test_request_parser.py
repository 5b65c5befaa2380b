"""Requests that offer another protocol are read as HTTP/1.1, and their bodies never as requests."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from tests.unit.router.served_app import connected, rest_of, serving

JAVA = shutil.which("java")
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: h2c\r\n"
"""Headers of Java's HttpClient in every request over plain text."""
SMUGGLED = b"DELETE /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
"""A body that would be a request where a body is taken for one."""
LAST = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
JAVA_CLIENT = """
import java.net.URI;
import java.net.http.*;

public class Client {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int i = 0; i < 3; i++) {
            HttpRequest.BodyPublisher body = i < 2
                ? HttpRequest.BodyPublishers.ofString("body " + i + "x".repeat(i * 50000))
                : HttpRequest.BodyPublishers.ofInputStream(
                    () -> new java.io.ByteArrayInputStream("streamed".getBytes()));
            URI uri = URI.create(args[0] + "/java" + i);
            HttpRequest request = HttpRequest.newBuilder(uri).POST(body).build();
            System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
        }
    }
}
"""


class Echo:
    """An application that answers with the request as it was read."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        self.seen.append((scope["method"], scope["path"], body))
        said = f"{scope['method']} {scope['path']} {len(body)}".encode()
        headers = [(b"content-length", b"%d" % len(said))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})


def post(*, offer: bytes = OFFER, body: bytes = SMUGGLED, is_chunked: bool = False) -> bytes:
    head = b"POST /first HTTP/1.1\r\nHost: a\r\n" + offer
    if not is_chunked:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def whole(sent: bytes) -> Iterator[bytes]:
    yield sent


def byte_by_byte(sent: bytes) -> Iterator[bytes]:
    for place in range(len(sent)):
        yield sent[place : place + 1]


def head_first(sent: bytes) -> Iterator[bytes]:
    place = sent.index(b"\r\n\r\n") + 4
    yield sent[:place]
    yield sent[place:]


def end_of_head_apart(sent: bytes) -> Iterator[bytes]:
    place = sent.index(b"\r\n\r\n") + 2
    yield sent[:place]
    yield sent[place:]


def in_the_body(sent: bytes) -> Iterator[bytes]:
    place = sent.index(b"\r\n\r\n") + 12
    yield sent[:place]
    yield sent[place:]


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("split", [whole, byte_by_byte, head_first, end_of_head_apart, in_the_body])
async def test_the_body_of_a_request_that_offers_an_upgrade_is_its_body(
    split: Callable[[bytes], Iterator[bytes]], is_chunked: bool
) -> None:
    echo = Echo()
    async with serving(echo) as server, connected(server) as (reader, writer):
        for part in split(post(is_chunked=is_chunked) + LAST):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        said = await rest_of(reader)
        assert echo.seen == [("POST", "/first", SMUGGLED), ("GET", "/last", b"")]
        assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"200"]


@pytest.mark.parametrize(
    "offer",
    [
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Upgrade: h2c, foo/2\r\nConnection: keep-alive, upgrade\r\n",
        b"Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n",
    ],
)
async def test_every_other_protocol_is_declined_too(offer: bytes) -> None:
    echo = Echo()
    async with serving(echo) as server, connected(server) as (reader, writer):
        offering = b"GET /offering HTTP/1.1\r\nHost: a\r\n" + offer + b"\r\n"
        writer.write(offering + post(offer=offer) + offering + LAST)
        await rest_of(reader)
        paths = [path for _, path, _ in echo.seen]
        assert paths == ["/offering", "/first", "/offering", "/last"]


@pytest.mark.parametrize("split", [whole, head_first])
@pytest.mark.parametrize(
    ("version", "connection"),
    [(b"1.0", b"upgrade"), (b"1.0", b"keep-alive, upgrade"), (b"1.1", b"close, upgrade")],
)
async def test_the_last_request_of_a_connection_may_offer_an_upgrade(
    version: bytes, connection: bytes, split: Callable[[bytes], Iterator[bytes]]
) -> None:
    echo = Echo()
    offer = b"Connection: %b\r\nUpgrade: h2c\r\n" % connection
    async with serving(echo) as server, connected(server) as (reader, writer):
        for part in split(post(offer=offer).replace(b"HTTP/1.1", b"HTTP/" + version, 1) + LAST):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        said = await rest_of(reader)
        assert (re.findall(rb"HTTP/1.1 (\d+)", said), echo.seen) == ([b"200"], [("POST", "/first", SMUGGLED)])


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 50\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Content-Length: +5\r\n",
    ],
)
async def test_an_ambiguous_length_is_refused_with_an_upgrade_as_without(framing: bytes) -> None:
    for offer in (b"", OFFER):
        echo = Echo()
        async with serving(echo) as server, connected(server) as (reader, writer):
            writer.write(b"POST /first HTTP/1.1\r\nHost: a\r\n" + offer + framing + b"\r\n" + SMUGGLED)
            assert (await rest_of(reader)).startswith(b"HTTP/1.1 400 ")
            assert [path for _, path, _ in echo.seen if path == "/smuggled"] == []


@pytest.mark.parametrize("target", [b"a:80", b"/first"])
async def test_a_tunnel_is_refused_and_nothing_in_it_is_a_request(target: bytes) -> None:
    echo = Echo()
    async with serving(echo) as server, connected(server) as (reader, writer):
        writer.write(b"CONNECT %b HTTP/1.1\r\nHost: a:80\r\n\r\n" % target + SMUGGLED)
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 400 ")
        assert echo.seen == []


@pytest.mark.slow
@pytest.mark.skipif(JAVA is None, reason="there is no java here")
@pytest.mark.timeout(180)
async def test_javas_http_client_is_answered(tmp_path: Path) -> None:
    source = tmp_path / "Client.java"
    source.write_text(JAVA_CLIENT)
    async with serving(Echo()) as server:
        command = (str(JAVA), str(source), f"http://127.0.0.1:{server.port}")
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=150)
    assert done.stdout.splitlines() == ["POST /java0 6", "POST /java1 50006", "POST /java2 8"], done.stderr
