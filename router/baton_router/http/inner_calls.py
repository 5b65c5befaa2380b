"""Calls that the router makes itself, as clients do but without a connection; those for lines of batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

from baton_router.http.app_state import AppState
from baton_router.http.endpoint import LINE_TENANT, Endpoint
from baton_router.http.middleware import REQUEST_ID_HEADER, RequestIds
from baton_router.http.routes import ROUTES


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


class LineCalls:
    """Answers the lines of batches as the routes answer calls of clients."""

    def __init__(self, state: AppState) -> None:
        routes = [route for route in ROUTES if route.batch_defaults is not None]
        self.defaults = {route.path: route.batch_defaults or {} for route in routes}
        """Fields that requests have which do not name them, by the routes that may be asked."""
        self._gate = state.service.router.lines
        self._endpoints = {route.path: RequestIds(Endpoint(route, state)) for route in routes}

    async def ask(self, tenant: str, url: str, content: bytes, request_id: str) -> tuple[int, bytes]:
        """Return the status and the body of a route's reply; waits for its turn among other requests."""
        headers = [(REQUEST_ID_HEADER.encode(), request_id.encode())]
        async with self._gate.line():
            reply = await call_route(self._endpoints[url], url, content, headers, **{LINE_TENANT: tenant})
        return reply.status, reply.body
