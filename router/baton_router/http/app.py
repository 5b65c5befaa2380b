"""The HTTP application: the table of routes, and what every call passes before its route answers it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from baton_router.http.auth import require_key, require_own_site
from baton_router.http.bodies import decode_body, nested_too_deeply, read_body
from baton_router.http.calls import Call
from baton_router.http.counted_calls import CountedCalls, name_route
from baton_router.http.errors import HttpError, failure_of
from baton_router.http.http_settings import HttpSettings
from baton_router.http.openapi import describe
from baton_router.http.request_ids import HEADER, RequestIds
from baton_router.http.route import PARAMETER, Route
from baton_router.http.routes import METRICS, OPERATOR_ROUTES, ROUTES
from baton_router.http.site import Site
from baton_router.http.sse import RESUME_HEADER
from baton_router.trace_context import HEADER as TRACEPARENT


def make_app(site: Site) -> ASGIApp:
    """Put the application together."""
    settings = site.settings
    table = [_as_set(route, settings) for route in ROUTES]
    table += OPERATOR_ROUTES if settings.enable_operator_routes else ()
    routes = [_mount(route, site) for route in (*table, describe(table, settings.root_path))]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: _NoRoute(site)})
    inner.router.redirect_slashes = False
    app: ASGIApp = inner
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_credentials=settings.allow_credentials,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            expose_headers=(HEADER, TRACEPARENT, RESUME_HEADER.decode()),
        )
    return RequestIds(CountedCalls(app, site.metrics.http))


def _as_set(route: Route, settings: HttpSettings) -> Route:
    return replace(route, needs_key=False) if settings.open_metrics and route.path == METRICS else route


def _mount(route: Route, site: Site) -> StarletteRoute:
    return _CountedRoute(route.path, _Endpoint(route, site), methods=[route.method])


class _CountedRoute(StarletteRoute):
    """Leaves its path in the scope, also where it refuses the method, which its endpoint never sees."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        name_route(scope, PARAMETER.sub(r"{\1}", self.path))
        await super().handle(scope, receive, send)


class _Endpoint:
    """Checks the key, reads the body, has the route answer, and turns what it raises into an error's body."""

    def __init__(self, route: Route, site: Site) -> None:
        self._route = route
        self._site = site
        self._decoder = msgspec.json.Decoder(route.body) if route.body is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call[Any] = Call(self._site, scope, receive, send)
        try:
            headers = Headers(scope=scope)
            if self._route.method != "GET":
                require_own_site(headers, self._site.settings.allowed_origins)
            if self._route.needs_key:
                call.tenant = require_key(self._site.keys, headers)
            if self._decoder is not None:
                body = await read_body(receive, headers, self._site.settings.max_body_bytes)
                call.body = decode_body(body, self._decoder)
            await self._route.answer(call)
        except ClientDisconnect:
            return
        except RecursionError:
            await call.fail(failure_of(nested_too_deeply()))
        except Exception as error:
            await call.fail(failure_of(error))


class _NoRoute:
    """Answers paths and methods that the table lacks; who has no key does not learn which."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, request: Request, error: Exception) -> Response:
        try:
            require_key(self._site.keys, request.headers)
            raise _refusal(request, error)
        except HttpError as refusal:
            failure = failure_of(refusal)
        body = msgspec.json.encode(failure.body)
        return Response(body, failure.status, dict(failure.headers), media_type="application/json")


def _refusal(request: Request, error: Exception) -> HttpError:
    assert isinstance(error, HTTPException), "that is what this is registered for"
    path = request.url.path
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        text = f"method is {request.method!r}; allowed at {path}: {allowed}"
        return HttpError(405, "method_not_allowed", text, headers={"allow": allowed})
    return HttpError(error.status_code, "unknown_route", f"path is {path!r}; allowed: those in /openapi.json")
