"""The load generator's HTTP: connections that are kept, broken off, or answered in odd pieces."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from baton_bench.http_client import HttpClient, Origin, RedirectError
from baton_core.errors import InvalidConfigError
from tests.unit.baton_bench.scripted_server import EVENTS, answer, chunk, serving, sized


async def post(client: HttpClient, body: bytes = b"{}") -> tuple[int, bytes]:
    taken = bytearray()
    async with asyncio.timeout(30):
        status = await client.request("POST", "/v1/x", body, lambda data, _: taken.extend(data), {"a": "b"})
    return status, bytes(taken)


async def alike(_: int, writer: asyncio.StreamWriter) -> None:
    writer.write(sized(b"whole"))


async def test_requests_follow_one_another_on_one_connection() -> None:
    async with serving(alike) as (server, client):
        for _ in range(3):
            assert await post(client, b'{"n": 1}') == (200, b"whole")
        assert server.num_connections == 1
        head = server.requests[0].split(b"\r\n")
        assert head[0] == b"POST /v1/x HTTP/1.1"
        assert {b"Authorization: Bearer k", b"a: b", b"Content-Length: 8"} <= set(head)


async def test_as_many_connections_are_open_as_requests() -> None:
    async with serving(alike) as (server, client):
        for _ in range(2):
            await asyncio.gather(*(post(client) for _ in range(5)))
        assert server.num_connections == 5


async def test_a_body_comes_with_the_time_of_each_piece() -> None:
    pieces: list[tuple[bytes, float]] = []
    is_taken = asyncio.Event()

    def take(data: bytes, now_s: float) -> None:
        pieces.append((data, now_s))
        is_taken.set()

    async def slowly(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(chunk(EVENTS[:7]), "Transfer-Encoding: chunked"))
        await is_taken.wait()
        await asyncio.sleep(0.02)
        writer.write(chunk(EVENTS[7:]) + chunk(b""))

    async with serving(slowly) as (_, client):
        await client.request("POST", "/", b"", take)
    assert b"".join(data for data, _ in pieces) == EVENTS
    assert pieces[-1][1] - pieces[0][1] > 0.015


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
async def test_an_answer_may_end_with_its_connection(headers: tuple[str, ...]) -> None:
    async def once(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(EVENTS, *headers))
        writer.close()

    async with serving(once) as (server, client):
        assert await post(client) == (200, EVENTS)
        assert await post(client) == (200, EVENTS)
        assert server.num_connections == 2


async def test_an_answer_is_asked_for_plain_and_decoded_all_the_same() -> None:
    async def compress(_: int, writer: asyncio.StreamWriter) -> None:
        body = gzip.compress(EVENTS)
        writer.write(answer(body, "Content-Encoding: gzip", f"Content-Length: {len(body)}"))

    async with serving(compress) as (server, client):
        assert await post(client) == (200, EVENTS)
    assert b"\r\naccept-encoding: identity\r\n" in server.requests[0].lower()


async def test_a_redirect_is_told_and_not_followed() -> None:
    async def redirect(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"", "Location: https://h/v1/x", "Content-Length: 0", status="302 Found"))

    async with serving(redirect) as (server, client):
        with pytest.raises(RedirectError, match=r"^HTTP 302: the server redirects to https://h/v1/x$"):
            await post(client)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (b"", ConnectionResetError),
        (sized(b"whole")[:-2], ConnectionResetError),
        (answer(chunk(EVENTS), "Transfer-Encoding: chunked"), ConnectionResetError),
        (b"SSH-2.0-OpenSSH_9.6\r\n", ValueError),
    ],
)
async def test_an_answer_that_breaks_off_or_is_none_is_an_error(told: bytes, error: type[Exception]) -> None:
    async def die(_: int, writer: asyncio.StreamWriter) -> None:
        writer.write(told)
        writer.close()

    async with serving(die) as (_, client):
        with pytest.raises(error):
            await post(client)


async def test_a_server_that_is_not_there_is_named_with_the_reason_of_the_system() -> None:
    async with serving(alike) as (server, _):
        assert server.origin is not None
    client = HttpClient(server.origin, {})
    with pytest.raises(ConnectionError, match=f"^cannot connect to {server.origin.url}: Connection refused$"):
        await post(client)
    await client.close()


async def test_a_reader_that_gives_up_ends_its_request_and_no_other() -> None:
    def refuse(_: bytes, __: float) -> None:
        raise ValueError("enough")

    async with serving(alike) as (_, client):
        with pytest.raises(ValueError, match="enough"):
            await client.request("POST", "/", b"", refuse)
        assert await post(client) == (200, b"whole")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:80", ("host", 80, "")),
        ("http://host/", ("host", 80, "")),
        ("http://[::1]:8000/v1", ("::1", 8000, "")),
        ("http://host/llm/v1/", ("host", 80, "/llm")),
        ("https://host", ("host", 443, "")),
    ],
)
def test_an_origin_is_read_from_a_url(url: str, expected: tuple[str, int, str]) -> None:
    origin = Origin.parse(url)
    assert (origin.host, origin.port, origin.path) == expected
    assert (origin.tls is not None) is url.startswith("https")


@pytest.mark.parametrize("url", ["host:80", "ftp://host", "http://", "http://host:99999", "http://host?a=b"])
def test_what_is_no_origin_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"--base-url is .*; allowed: http://host:port"):
        Origin.parse(url)
