"""Attacks by clients without a key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import grpc

from bench.attack.targets import Attack, Target, at_once

NUM_SILENT: Final = 1100
HOLD_S: Final = 15.0
ANSWER_S: Final = 10.0
JUNK_SIZES: Final = (1, 7, 300, 5000, 100_000)
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS: Final = b"\0\0\0\4\0\0\0\0\0"
PING: Final = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"
POST: Final = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
HIDDEN: Final = b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n"
SMUGGLED: Final = (
    POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + HIDDEN,
    POST + b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n" + HIDDEN,
    POST + b"Content-Length: +0\r\n\r\n" + HIDDEN,
    POST + b"Content-Length: 0, 0\r\n\r\n" + HIDDEN,
    POST + b"Content-Length : 0\r\n\r\n" + HIDDEN,
    POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    POST + b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + HIDDEN,
    POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + HIDDEN,
    POST + b"Transfer-Encoding: chunked\r\n\r\n1;\nab\r\n0\r\n\r\n" + HIDDEN,
    POST + b"X: a\r\n\tContent-Length: 40\r\n\r\n" + HIDDEN + HIDDEN,
    b"GET /ping HTTP/1.1\nHost: a\nContent-Length: 40\n\n" + HIDDEN + HIDDEN,
)
"""Requests whose length can be read in two ways, each with another request where one reading has a body."""
METHODS: Final = (
    *("/baton.v1.Baton/Generate", "/baton.v1.Baton/Tokenize", "/baton.v1.Baton/Control"),
    *("/baton.v1.Sessions/Connect", "/baton.v1.Baton/GetModelInfo", "/no.such/Method"),
)


WITHOUT_KEY: Final = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
)
"""Allowed ends of a call without a key: refused, or not answered at all."""
_HEADERS: Final = 1
_RST_STREAM: Final = 3
_END_HEADERS: Final = 4
_CANCEL: Final = b"\0\0\0\x08"
NUM_RESETS: Final = 2000


async def silent(target: Target) -> None:
    """Hold connections to both ports without a byte; ones that the router closes are counted."""

    async def one(number: int) -> None:
        address = target.grpc_address if number % 4 == 0 else target.http_address
        try:
            async with asyncio.timeout(HOLD_S), target.connected(address) as (reader, _):
                while await reader.read(2**16):  # HTTP/2 settings come unasked
                    pass
                target.end("closed")
        except TimeoutError:
            target.end("held")
        except OSError:
            target.end("refused")

    await at_once(NUM_SILENT, one)


async def slow_headers(target: Target) -> None:
    async def one(number: int) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(HOLD_S), target.connected() as (_, writer):
                for byte in b"GET /ping HTTP/1.1\r\n" + b"X: a\r\n" * 1000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.25)
        target.end("over")

    await at_once(200, one)


async def junk(target: Target) -> None:
    async def one(number: int) -> None:
        content = target.rng.randbytes(target.rng.choice(JUNK_SIZES))
        for status in await target.exchange(content, within_s=ANSWER_S, ends=True) or ("none",):
            target.end(status)

    await at_once(200, one)


async def grpc_junk(target: Target) -> None:
    openings = (b"", PREFACE, PREFACE + SETTINGS, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", PING)

    async def one(number: int) -> None:
        content = openings[number % len(openings)] + target.rng.randbytes(target.rng.choice(JUNK_SIZES))
        await send_to_grpc(target, content)

    await at_once(200, one)


async def send_to_grpc(target: Target, content: bytes) -> None:
    """Send bytes to the gRPC port, and read until it hangs up or does not within `ANSWER_S`."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S), target.connected(target.grpc_address) as (reader, writer):
            writer.write(content)
            while await reader.read(2**16):
                pass
    target.end("over")


async def rapid_resets(target: Target) -> None:
    """Open calls and reset each at once (CVE-2023-44487)."""
    content = opened_and_reset(METHODS[0], NUM_RESETS)
    await at_once(20, lambda _: send_to_grpc(target, content))


def opened_and_reset(method: str, num_calls: int) -> bytes:
    """HTTP/2 of a client that opens so many calls of gRPC and resets each at once."""
    headers = (
        b"\x83\x86"  # POST, http
        + _literal(b"\x04", method.encode())
        + _literal(b"\x01", b"a")
        + _literal(b"\x0f\x10", b"application/grpc")
        + _literal(b"\x00\x02te", b"trailers")
    )
    calls = (
        _frame(_HEADERS, _END_HEADERS, stream_id, headers) + _frame(_RST_STREAM, 0, stream_id, _CANCEL)
        for stream_id in range(1, 2 * num_calls, 2)
    )
    return PREFACE + SETTINGS + b"".join(calls)


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header of HPACK that is not indexed, by the bytes that name it."""
    return name + bytes([len(value)]) + value


async def grpc_calls(target: Target) -> None:
    async with target.channel(key="") as (channel, metadata):
        for method in METHODS * 20:
            content = target.rng.randbytes(target.rng.choice(JUNK_SIZES))
            try:
                await channel.unary_unary(method)(content, timeout=ANSWER_S, metadata=metadata)
                code = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                code = error.code()
            target.end(code.name)
            if code not in WITHOUT_KEY:
                target.wrong(f"{method} without a key ends as {code.name}")


async def upgrades(target: Target) -> None:
    """Ask for HTTP/2 in clear text as Java's client does; the header may be ignored, nothing else."""
    headers = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n\r\n"
    upgrade = PING.removesuffix(b"\r\n") + headers
    await at_once(50, lambda _: send_ping(target, upgrade, "with Upgrade: h2c"))


async def half_closes(target: Target) -> None:
    await at_once(100, lambda _: send_ping(target, PING, "whose client sends no more"))


async def send_ping(target: Target, content: bytes, kind: str) -> None:
    """Send a GET of /ping and the end, which has to be answered as ever."""
    statuses = await target.exchange(content, within_s=ANSWER_S, ends=True)
    target.end(statuses)
    if statuses not in ([200], [503]):
        target.wrong(f"GET /ping {kind} is answered with {statuses}")


async def hang_ups(target: Target) -> None:
    whole = POST + b"Content-Length: 4000\r\n\r\n" + b"{" * 4000

    async def one(number: int) -> None:
        with suppress(OSError):
            async with target.connected() as (_, writer):
                writer.write(whole[: target.rng.randrange(len(whole))])
                await asyncio.sleep(target.rng.random() / 10)
        target.end("left")

    await at_once(300, one)


async def pipelining(target: Target) -> None:
    async def one(number: int) -> None:
        statuses = await target.exchange(PING * 2000, within_s=ANSWER_S)
        target.end(f"{len(statuses)} answers" if statuses else "none")

    await at_once(20, one)


async def smuggling(target: Target) -> None:
    async def one(number: int) -> None:
        content = SMUGGLED[number % len(SMUGGLED)]
        statuses = await target.exchange(content, within_s=5.0, ends=True)
        target.end(statuses)
        if len(statuses) > 1 or statuses[:1] == [200]:
            target.wrong(f"{content!r} is answered with {statuses}")

    await at_once(2 * len(SMUGGLED), one)


async def oversized(target: Target) -> None:
    requests: Sequence[bytes] = (
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 2**20,
        b"GET /" + b"a" * 2**20,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
        POST + b"Content-Length: 1073741824\r\n\r\n" + b" " * 2**22,
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b" " * 2**20 + b"\r\n100000\r\n",
    )

    async def one(number: int) -> None:
        target.end(await target.exchange(requests[number % len(requests)], within_s=ANSWER_S))

    await at_once(5 * len(requests), one)
    async with target.channel(key="") as (channel, metadata):
        with suppress(grpc.aio.AioRpcError):
            await channel.unary_unary(METHODS[0])(b"\0" * 5 * 2**20, timeout=ANSWER_S, metadata=metadata)


async def unread(target: Target) -> None:
    """Ask for a large answer again and again and take nothing of it."""
    ask = b"GET /pages/marked.js HTTP/1.1\r\nHost: a\r\n\r\n"

    async def one(number: int) -> None:
        with suppress(OSError):
            async with target.connected() as (_, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(ask * 60)
                await asyncio.sleep(HOLD_S)
        target.end("left")

    await at_once(100, one)


STRANGERS: Final = tuple(
    Attack(name=name, what=what, run=run, has_key=False)
    for name, what, run in (
        ("silent", f"{NUM_SILENT} connections to both ports without a byte, held for {HOLD_S:g} s", silent),
        ("slow-headers", "200 connections that send a byte of a header four times a second", slow_headers),
        ("junk", "200 connections with random bytes at the HTTP port", junk),
        ("grpc-junk", "200 connections with random bytes and broken HTTP/2 at the gRPC port", grpc_junk),
        (
            "rapid-resets",
            f"20 connections that open {NUM_RESETS:,} calls and reset each at once",
            rapid_resets,
        ),
        ("grpc-calls", "random messages for every gRPC method, the workers' too, without a key", grpc_calls),
        ("upgrades", "requests with Upgrade: h2c", upgrades),
        ("half-closes", "clients that shut their sending side down behind the request", half_closes),
        ("hang-ups", "300 clients that leave in the middle of headers or bodies", hang_ups),
        ("pipelining", "20 connections with 2,000 requests in one write", pipelining),
        ("smuggling", "requests whose length can be read in two ways, with another inside", smuggling),
        ("oversized", "headers of 1 MiB, bodies of 1 GiB, a gRPC message of 5 MiB", oversized),
        ("unread", "100 connections that take nothing of 60 large answers", unread),
    )
)
