"""Middleware: request ids, from `x-request-id` or made here, and metrics of HTTP calls."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton_core.errors import InvalidRequestError
from baton_router.metrics.http_metrics import HttpMetrics
from baton_router.requests.request_reader import MAX_REQUEST_ID_CHARACTERS
from baton_service.logs import current_request_id

REQUEST_ID_HEADER: Final = "x-request-id"
REQUEST_NAME: Final = "baton.request_name"
"""Key of a scope for the `RequestName` of its call."""
UNCOUNTED: Final = frozenset({"/metrics", "/health", "/live", "/ready", "/ping", "/load", "/version"})
"""Routes that scrapers and probes call again and again."""
_CLIENT_LEFT: Final = 499
"""Status of a call whose client left before a reply began."""
ROUTE: Final = "baton.route"
"""Key of a scope under which the route that takes the call leaves its path, with parameters in braces."""


class RequestName:
    """The name of one call: that of its header or one made here, until its route adopts another.

    Args:
        running: calls by the names that their routes have adopted.
    """

    def __init__(self, given: str, running: Counter[str]) -> None:
        self.is_given = _is_name(given)
        """True if it is that of the header, which later calls may have too."""
        self._given = given if self.is_given else ""
        self._running = running
        self._is_adopted = False
        self._rename(self._given or f"req-{secrets.token_hex(8)}")

    @property
    def echoed(self) -> str:
        """The name in the header of the reply: a header's name as it came."""
        return self._given or self.text

    def adopt(self, name: str | None) -> str:
        """Take the name that the body gives, if any, instead of the header's; returns the name in force.

        A header's name gets a suffix while another call has it: clients and proxies send calls twice. The
        first name that a call adopts stays.

        Raises:
            InvalidRequestError: a header could not carry it.
        """
        if name is not None and not _is_name(name):
            allowed = f"1 to {MAX_REQUEST_ID_CHARACTERS} printable ASCII characters"
            raise InvalidRequestError("request_id", name, allowed)
        if not self._is_adopted:
            if name is not None:
                self.is_given = False
                self._rename(name)
            elif self.text in self._running:
                suffix = f"-{secrets.token_hex(4)}"
                self._rename(self.text[: MAX_REQUEST_ID_CHARACTERS - len(suffix)] + suffix)
            self._is_adopted = True
            self._running[self.text] += 1
        return self.text

    def release(self) -> None:
        """Let other calls have it."""
        if self._is_adopted:
            self._running[self.text] -= 1
            if not self._running[self.text]:
                del self._running[self.text]

    def _rename(self, text: str) -> None:
        self.text = text
        current_request_id.set(text)


def _is_name(text: str) -> bool:
    return text.isascii() and text.isprintable() and 0 < len(text) <= MAX_REQUEST_ID_CHARACTERS


class RequestIds:
    """Names each request before `app` handles it; its `RequestName` is in the scope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope[REQUEST_NAME] = RequestName(
            Headers(scope=scope).get(REQUEST_ID_HEADER, ""), self._running
        )

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = name.echoed
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            name.release()


class CountedCalls:
    """Wraps `app`, whose calls are counted under the paths of their routes, all without one together."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, began_s = _CLIENT_LEFT, time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            handler = scope.get(ROUTE, "")
            if handler not in UNCOUNTED:
                duration_s = time.monotonic() - began_s
                self._metrics.on_answered(handler, scope["method"], status, duration_s)
