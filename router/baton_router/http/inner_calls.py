"""Calls that the router makes itself: those of clients, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerReply:
    """A route's reply; the status is 0 where it sent none."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


async def call_route(
    app: ASGIApp, path: str, content: bytes, headers: Iterable[tuple[bytes, bytes]], **scope: Any
) -> InnerReply:
    """Return a route's reply to a POST of JSON; `scope` has further keys of the call's."""
    status, body, is_sent = 0, bytearray(), False
    head: tuple[tuple[bytes, bytes], ...] = ()
    length = (b"content-length", str(len(content)).encode())
    call = {"type": "http", "method": "POST", "path": path, "query_string": b"", **scope}
    call["headers"] = [*headers, length]

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await asyncio.Event().wait()  # the router never hangs up
        is_sent = True
        return {"type": "http.request", "body": content}

    async def send(message: Message) -> None:
        nonlocal status, head
        if message["type"] == "http.response.start":
            status, head = message["status"], tuple(message.get("headers", ()))
        body.extend(message.get("body", b""))

    await app(call, receive, send)
    return InnerReply(status=status, headers=head, body=bytes(body))
