"""The HTTP application: its routes, and the checks that every call passes before its route."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from baton_core.errors import InvalidConfigError
from baton_router.http.app_state import AppState
from baton_router.http.calls import RESUME_HEADER
from baton_router.http.endpoint import Endpoint, require_key
from baton_router.http.errors import OPENAI, Dialect, HttpError, failure_of
from baton_router.http.ignored_fields import IGNORED_HEADER
from baton_router.http.messages.replies import ANTHROPIC
from baton_router.http.middleware import (
    REQUEST_ID_HEADER,
    REQUEST_NAME,
    ROUTE,
    CountedCalls,
    RequestIds,
)
from baton_router.http.openapi import describe
from baton_router.http.page import DOCS
from baton_router.http.route import PARAMETER
from baton_router.http.routes import (
    ADAPTER_ROUTES,
    BATCH_ROUTES,
    OPERATOR_ROUTES,
    ROUTES,
    TOKENIZER_ROUTES,
)
from baton_router.http.server_routes import METRICS_PATH
from baton_router.requests.validation import TRACEPARENT


def make_app(state: AppState) -> ASGIApp:
    """Return the application.

    Raises:
        InvalidConfigError: middleware cannot be imported.
    """
    settings = state.settings
    opened = METRICS_PATH if settings.open_metrics else ""
    table = [replace(route, needs_key=False) if route.path == opened else route for route in ROUTES]
    table += OPERATOR_ROUTES if settings.enable_operator_routes else ()
    if settings.enable_lora_updates and not settings.enable_operator_routes:
        table += ADAPTER_ROUTES
    table += TOKENIZER_ROUTES if settings.enable_tokenizer_info else ()
    table += BATCH_ROUTES if state.batches is not None else ()
    if settings.serves_docs:
        table.append(describe(table, settings.root_path))
    else:
        table = [route for route in table if route.path != DOCS]
    routes = [_CountedRoute(route.path, Endpoint(route, state), methods=[route.method]) for route in table]
    no_route = _NoRoute(state, {route.path: route.dialect for route in table})
    inner = Starlette(routes=routes, exception_handlers={HTTPException: no_route})
    inner.router.redirect_slashes = False
    app: ASGIApp = inner
    if settings.keyed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.keyed_origins,
            allow_credentials=settings.allow_credentials and bool(settings.allowed_origins),
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            expose_headers=(
                *(REQUEST_ID_HEADER, ANTHROPIC.request_id_header),
                *(TRACEPARENT, RESUME_HEADER.decode(), IGNORED_HEADER, "retry-after"),
            ),
        )
    for name in reversed(settings.middleware):  # the first one is the outermost
        app = _wrapped(app, name)
    return RequestIds(CountedCalls(app, state.metrics.http))


class _CountedRoute(StarletteRoute):
    """Puts its path into the scope, also where it refuses the method."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = PARAMETER.sub(r"{\1}", self.path)
        await super().handle(scope, receive, send)


class _NoRoute:
    """Refuses paths and methods without a route; callers without a key do not learn which exist.

    Args:
        dialects: those of the routes, by their paths.
    """

    def __init__(self, state: AppState, dialects: Mapping[str, Dialect]) -> None:
        self._state = state
        self._dialects = dialects

    async def __call__(self, request: Request, error: Exception) -> Response:
        try:
            require_key(self._state.keys, request.headers)
            raise self._refusal(request, error)
        except HttpError as refusal:
            failure = failure_of(refusal)
        name, headers = request.scope[REQUEST_NAME].text, dict(failure.headers)
        dialect = self._dialect_of(_known_path(request))
        if dialect.request_id_header:
            headers[dialect.request_id_header] = name
        body = msgspec.json.encode(dialect.error_body(failure, name))
        return Response(body, failure.status, headers, media_type="application/json")

    def _dialect_of(self, path: str) -> Dialect:
        """Return the dialect of a path: that of a route there or above it."""
        above = (dialect for route, dialect in self._dialects.items() if f"{path}/".startswith(f"{route}/"))
        return next(above, OPENAI)

    def _refusal(self, request: Request, error: Exception) -> HttpError:
        assert isinstance(error, HTTPException), "that is what this is registered for"
        path, known = request.url.path, _known_path(request)
        # A path that matches a route by a parameter may be one of the absent ones, which take POST.
        if error.status_code == 405 and not (request.method == "POST" and known in _ABSENT):
            allowed = ", ".join(sorted(_methods_at(request)))
            text = f"method is {request.method!r}; allowed at {path}: {allowed}"
            if request.method == "OPTIONS" and not self._state.settings.keyed_origins:
                text += "; pages of other origins need --allowed-origins or --api-key"
            return HttpError(405, "method_not_allowed", text, headers={"allow": allowed})
        if (without_slash := known.removesuffix("/")) in self._dialects:
            location = request.scope.get("root_path", "") + without_slash
            query = f"?{request.url.query}" if request.url.query else ""
            text = f"path is {path!r}; allowed: {location}"
            return HttpError(307, "moved", text, headers={"location": location + query})
        allowed = _why_absent(known, self._dialects)
        return HttpError(404, "unknown_route", f"path is {path!r}; allowed: {allowed}")


def _known_path(request: Request) -> str:
    """Return a request's path without that of the proxy in front."""
    return request.url.path.removeprefix(request.scope.get("root_path", ""))


def _methods_at(request: Request) -> set[str]:
    """Return the methods of all routes of a path."""
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return set().union(*(route.methods for route in matching))


_SERVED: Final = "those in /openapi.json"
_SPEECH: Final = "those in /openapi.json: no speech models are served"
_OPERATOR: Final = "those in /openapi.json: this router runs without --enable-operator-routes"
_ADAPTERS: Final = "those in /openapi.json: this router runs without --enable-lora-updates"
_FILES: Final = "those in /openapi.json: this router runs without --files-directory"
_NOT_SERVED: Final = "those in /openapi.json: responses are not compacted here"
_BELOW: Final = re.compile(r"(/v1/(?:files|batches))/.*", re.DOTALL)
_ABSENT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), _SPEECH),
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"), _ADAPTERS),
    **dict.fromkeys(("/v1/files", "/v1/batches"), _FILES),
    "/v1/chat/completions/batch": "/v1/chat/completions: one call for each conversation, all at once",
    "/v1/responses/compact": _NOT_SERVED,
    "/server_info": "/debug/cluster: it shows the workers and what they serve",
    "/tokenizer_info": "those in /openapi.json: this router runs without --enable-tokenizer-info-endpoint",
    **dict.fromkeys((route.path for route in OPERATOR_ROUTES), _OPERATOR),
}
"""The part of a refusal that says what is allowed, by path."""


def _why_absent(path: str, served: Collection[str]) -> str:
    """Return what is allowed in the place of a path that has no route; `served` are those that have one."""
    absent = _BELOW.sub(r"\1", path)
    return _SERVED if absent in served else _ABSENT.get(absent, _SERVED)


def _wrapped(app: ASGIApp, name: str) -> ASGIApp:
    """Return the application within the operator's middleware of that name, as vLLM takes it.

    A class is called with the application; a coroutine function gets a request and the next handler.

    Raises:
        InvalidConfigError: the name cannot be imported, or is neither.
    """
    module, _, attribute = name.replace(":", ".").rpartition(".")
    found: Any
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # a module may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise _wrong_middleware(name, f"which cannot be imported ({reason})") from error
    if isinstance(found, type):
        make: Callable[[ASGIApp], ASGIApp] = found
        return make(app)
    if inspect.iscoroutinefunction(found):
        return BaseHTTPMiddleware(app, dispatch=found)
    raise _wrong_middleware(name, f"which is a {type(found).__name__}")


def _wrong_middleware(name: str, what: str) -> InvalidConfigError:
    allowed = "a class of ASGI middleware, or a coroutine function of request and next handler"
    return InvalidConfigError(f"--middleware is {name!r}, {what}; allowed: {allowed}")
