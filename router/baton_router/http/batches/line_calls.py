"""Calls that the router makes itself for the lines of batches: those of clients, without a connection."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message

from baton_router.http.app_state import AppState
from baton_router.http.endpoint import TENANT, Endpoint
from baton_router.http.middleware import REQUEST_ID_HEADER, RequestIds
from baton_router.http.routes import ROUTES


class LineCalls:
    """Answers requests for one router."""

    def __init__(self, state: AppState) -> None:
        routes = [route for route in ROUTES if route.batch_defaults is not None]
        self.defaults = {route.path: route.batch_defaults or {} for route in routes}
        """Fields that requests have which do not name them, by the routes that may be asked."""
        self._gate = state.service.router.lines
        self._endpoints = {route.path: RequestIds(Endpoint(route, state)) for route in routes}

    async def ask(self, tenant: str, url: str, content: bytes, request_id: str) -> tuple[int, bytes]:
        """Return the status and the body of a route's reply; waits for its turn among other requests."""
        status, body, is_sent = 0, bytearray(), False
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": url,
            "query_string": b"",
            "headers": [
                (REQUEST_ID_HEADER.encode(), request_id.encode()),
                (b"content-length", str(len(content)).encode()),
            ],
            TENANT: tenant,
        }

        async def receive() -> Message:
            nonlocal is_sent
            if is_sent:
                await asyncio.Event().wait()  # the router never hangs up
            is_sent = True
            return {"type": "http.request", "body": content}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            body.extend(message.get("body", b""))

        async with self._gate.line():
            await self._endpoints[url](scope, receive, send)
        return status, bytes(body)
