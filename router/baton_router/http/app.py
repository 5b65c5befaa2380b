"""The HTTP application: its routes, and the checks that every call passes before its route."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from baton_router.http.absent_routes import ABSENT_ROUTES
from baton_router.http.app_state import AppState
from baton_router.http.bodies import BodyDecoder, nested_too_deeply, read_body
from baton_router.http.calls import RESUME_HEADER, Call
from baton_router.http.errors import HttpError, failure_of
from baton_router.http.ignored_fields import IGNORED_HEADER
from baton_router.http.middleware import REQUEST_ID_HEADER, CountedCalls, RequestIds, name_route
from baton_router.http.openapi import describe
from baton_router.http.operator_middleware import with_middleware
from baton_router.http.operator_table import OPERATOR_ROUTES
from baton_router.http.route import PARAMETER, Route, Tag
from baton_router.http.routes import DOCS, METRICS, ROUTES, TOKENIZER_INFO
from baton_router.process.http_settings import HttpSettings
from baton_router.requests.validation import TRACEPARENT
from baton_service.keys import AUTHORIZATION, Keys

API_KEY_HEADER: Final = "x-api-key"
"""Anthropic's clients show their key there."""


def require_key(keys: Keys, headers: Headers) -> str:
    """Let a request pass whose `Authorization`, or else `x-api-key`, names a key; returns its tenant.

    Raises:
        HttpError: 401.
    """
    api_key = headers.get(API_KEY_HEADER)
    tenant = keys.tenant(headers.get(AUTHORIZATION) or (f"Bearer {api_key}" if api_key else ""))
    if tenant is None:
        raise HttpError(
            401,
            "invalid_api_key",
            "Incorrect API key provided, or none; allowed: Authorization: Bearer and one of this server",
            headers={"www-authenticate": "Bearer"},
        )
    return tenant


def require_same_origin(headers: Headers, allowed_origins: Collection[str]) -> None:
    """Refuse a browser's request for a page of another origin: it may reach what only its user can.

    Browsers name the page's origin in every such request, other clients mostly none. Behind a proxy that
    changes `Host`, browsers that reach it over https say that the origin is the same.

    Raises:
        HttpError: 403.
    """
    origin = headers.get("origin")
    if origin is None or headers.get("sec-fetch-site") == "same-origin" or "*" in allowed_origins:
        return
    if origin not in allowed_origins and origin.partition("://")[2] != headers.get("host"):
        allowed = ", ".join(("this server's own pages", *allowed_origins))
        raise HttpError(
            403, "forbidden_origin", f"origin is {origin!r}; allowed: {allowed} (--allowed-origins)"
        )


def make_app(state: AppState) -> ASGIApp:
    """Return the application.

    Raises:
        InvalidConfigError: middleware cannot be imported.
    """
    settings = state.settings
    table = [_as_set(route, settings) for route in ROUTES]
    table += OPERATOR_ROUTES if settings.enable_operator_routes else ()
    table += (TOKENIZER_INFO,) if settings.enable_tokenizer_info else ()
    if settings.serves_docs:
        table.append(describe(table, settings.root_path))
    else:
        table = [route for route in table if route.path != DOCS]
    routes = [_mount(route, state) for route in table]
    no_route = _NoRoute(state, {route.path for route in table})
    inner = Starlette(routes=routes, exception_handlers={HTTPException: no_route})
    inner.router.redirect_slashes = False
    app: ASGIApp = inner
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_credentials=settings.allow_credentials,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            expose_headers=(REQUEST_ID_HEADER, TRACEPARENT, RESUME_HEADER.decode(), IGNORED_HEADER),
        )
    app = with_middleware(app, settings.middleware)
    return RequestIds(CountedCalls(app, state.metrics.http))


def _as_set(route: Route, settings: HttpSettings) -> Route:
    return replace(route, needs_key=False) if settings.open_metrics and route.path == METRICS else route


def _mount(route: Route, state: AppState) -> StarletteRoute:
    return _CountedRoute(route.path, _Endpoint(route, state), methods=[route.method])


class _CountedRoute(StarletteRoute):
    """Puts its path into the scope, also where it refuses the method."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        name_route(scope, PARAMETER.sub(r"{\1}", self.path))
        await super().handle(scope, receive, send)


class _Endpoint:
    """Checks the key, reads the body, calls the route's handler, and turns errors into replies."""

    def __init__(self, route: Route, state: AppState) -> None:
        self._route = route
        self._state = state
        is_strict = state.settings.strict_fields or route.tag is Tag.OPERATOR
        self._decoder: BodyDecoder[Any] | None = (
            BodyDecoder(route.bodies, is_strict=is_strict) if route.bodies else None
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call[Any] = Call(self._state, scope, receive, send, self._route.dialect)
        try:
            headers = Headers(scope=scope)
            if self._route.method != "GET":
                require_same_origin(headers, self._state.settings.allowed_origins)
            if self._route.needs_key:
                call.tenant = require_key(self._state.keys, headers)
            with self._state.service.bodies.body() as call.room:
                if self._decoder is not None:
                    call.body = await self._read(call, receive, headers, self._decoder)
                await self._route.handler(call)
        except ClientDisconnect:
            return
        except RecursionError:
            await call.fail(failure_of(nested_too_deeply()))
        except Exception as error:
            await call.fail(failure_of(error))

    async def _read(
        self, call: Call[Any], receive: Receive, headers: Headers, decoder: BodyDecoder[Any]
    ) -> Any:
        room = call.room
        content = await read_body(receive, headers, self._state.settings.max_body_bytes, room)
        if room.is_large:
            await room.wait_to_decode()
            await self._state.share.turn()
        body, removal = decoder.decode(content)
        if removal.names:
            call.ignored = ", ".join(removal.names)
            self._state.ignored.note(removal)
        return body


class _NoRoute:
    """Refuses paths and methods without a route; callers without a key do not learn which exist."""

    def __init__(self, state: AppState, paths: Collection[str]) -> None:
        self._state = state
        self._paths = paths

    async def __call__(self, request: Request, error: Exception) -> Response:
        try:
            require_key(self._state.keys, request.headers)
            raise self._refusal(request, error)
        except HttpError as refusal:
            failure = failure_of(refusal)
        body = msgspec.json.encode(failure.body)
        return Response(body, failure.status, dict(failure.headers), media_type="application/json")

    def _refusal(self, request: Request, error: Exception) -> HttpError:
        assert isinstance(error, HTTPException), "that is what this is registered for"
        path = request.url.path
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            text = f"method is {request.method!r}; allowed at {path}: {allowed}"
            return HttpError(405, "method_not_allowed", text, headers={"allow": allowed})
        root_path = request.scope.get("root_path", "")
        known = path.removeprefix(root_path)
        if (without_slash := known.removesuffix("/")) in self._paths:
            location = root_path + without_slash
            query = f"?{request.url.query}" if request.url.query else ""
            text = f"path is {path!r}; allowed: {location}"
            return HttpError(307, "moved", text, headers={"location": location + query})
        allowed = ABSENT_ROUTES.get(known, "those in /openapi.json")
        return HttpError(error.status_code, "unknown_route", f"path is {path!r}; allowed: {allowed}")
