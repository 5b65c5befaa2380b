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
from baton_router.requests.prompt_reader import MAX_REQUEST_ID_CHARACTERS
from baton_service.logs import current_request_id

REQUEST_ID_HEADER: Final = "x-request-id"
_KEY: Final = "baton.request_id"
_IS_GIVEN: Final = "baton.request_id_is_given"
_RUNNING: Final = "baton.running_request_ids"
_ADOPTED: Final = "baton.adopted_request_id"
UNCOUNTED: Final = frozenset({"/metrics", "/health", "/live", "/ready", "/ping", "/load", "/version"})
"""Routes that scrapers and probes call again and again."""
_CLIENT_LEFT: Final = 499
"""Status of a call whose client left before a reply began."""
_ROUTE: Final = "baton.route"
"""Key of a scope under which the route that takes the call leaves its path."""


class RequestIds:
    """Names each request before `app` handles it; a header's name is echoed as it came."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: Counter[str] = Counter()
        """Calls by the names that their routes have adopted."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        is_name = _is_name(given)
        scope[_IS_GIVEN] = is_name
        scope[_RUNNING] = self._running
        _rename(scope, given if is_name else f"req-{secrets.token_hex(8)}")

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = given if is_name else scope[_KEY]
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            if (adopted := scope.get(_ADOPTED)) is not None:
                self._running[adopted] -= 1
                if not self._running[adopted]:
                    del self._running[adopted]


def request_id_of(scope: Scope) -> str:
    """The name of a request."""
    return str(scope[_KEY])


def is_named_by_header(scope: Scope) -> bool:
    """True if the name of a request is that of its header, which later requests may have too."""
    return bool(scope[_IS_GIVEN])


def adopt_request_id(scope: Scope, name: str | None) -> str:
    """Take the name that the body gives, if any, instead of the header's; returns the name in force.

    A header's name gets a suffix while another call has it: clients and proxies send calls twice. The first
    name that a call adopts stays.

    Raises:
        InvalidRequestError: a header could not carry it.
    """
    if name is not None and not _is_name(name):
        allowed = f"1 to {MAX_REQUEST_ID_CHARACTERS} printable ASCII characters"
        raise InvalidRequestError("request_id", name, allowed)
    if _ADOPTED not in scope:
        running = scope[_RUNNING]
        if name is not None:
            scope[_IS_GIVEN] = False
            _rename(scope, name)
        elif (given := request_id_of(scope)) in running:
            suffix = f"-{secrets.token_hex(4)}"
            _rename(scope, given[: MAX_REQUEST_ID_CHARACTERS - len(suffix)] + suffix)
        scope[_ADOPTED] = request_id_of(scope)
        running[scope[_ADOPTED]] += 1
    return request_id_of(scope)


def _rename(scope: Scope, name: str) -> None:
    scope[_KEY] = name
    current_request_id.set(name)


def _is_name(text: str) -> bool:
    return text.isascii() and text.isprintable() and 0 < len(text) <= MAX_REQUEST_ID_CHARACTERS


def name_route(scope: Scope, path: str) -> None:
    """Count a call under the path of its route, whose parameters stand in braces."""
    scope[_ROUTE] = path


class CountedCalls:
    """Wraps `app`, whose routes give their paths to `name_route`; all other paths are counted together."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_s = _CLIENT_LEFT, time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            handler = scope.get(_ROUTE, "")
            if handler not in UNCOUNTED:
                duration_s = time.monotonic() - began_s
                self._metrics.on_answered(handler, scope["method"], status, duration_s)
