"""Calls that the router makes itself for the lines of batches: those of clients, one for each line."""

from __future__ import annotations

from baton_router.http.app_state import AppState
from baton_router.http.endpoint import LINE_TENANT, Endpoint
from baton_router.http.inner_calls import call_route
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
        headers = [(REQUEST_ID_HEADER.encode(), request_id.encode())]
        async with self._gate.line():
            reply = await call_route(self._endpoints[url], url, content, headers, **{LINE_TENANT: tenant})
        return reply.status, reply.body
