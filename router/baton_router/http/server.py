"""The HTTP server of a router: uvicorn on the router's loop; signals stay with the process's own shell."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from typing import Final, cast

import uvicorn
from starlette.types import ASGIApp

from baton_router.http.bounded_protocol import BoundedProtocol
from baton_router.http.connection_limits import ConnectionLimits
from baton_router.http.listening import listen

_TICK_S: Final = 1.0
"""How often uvicorn writes the `date` of responses anew."""


class HttpServer:
    """Bind it, start it, stop it: once each, on one loop."""

    def __init__(self) -> None:
        self._listeners: list[socket.socket] = []
        self._server: uvicorn.Server | None = None
        self.port = 0
        """Where it listens, once bound."""

    def bind(self, host: str, port: int) -> None:
        """Take the port; who connects waits until `start`.

        Raises:
            InvalidConfigError: it cannot be taken.
        """
        self._listeners = listen(host, port)
        self.port = self._listeners[0].getsockname()[1]

    async def start(
        self, app: ASGIApp, *, root_path: str, limits: ConnectionLimits, tls: ssl.SSLContext | None = None
    ) -> None:
        """Serve `app`, without `tls` in plain text."""
        config = uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], partial(BoundedProtocol, limits)),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            root_path=root_path,
            timeout_keep_alive=cast(int, limits.idle_timeout_s),
        )
        config.load()
        config.ssl = tls
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(self._listeners)
        self._ticking = asyncio.create_task(_tick(self._server))

    async def stop(self, within_s: float) -> None:
        """Close idle connections, give running calls `within_s` to end, then cut them off."""
        if self._server is None:
            for listener in self._listeners:
                listener.close()
            return
        self._ticking.cancel()
        for listening in self._server.servers:
            listening.close()
        state = self._server.server_state
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=within_s)
        calls = list(state.tasks)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # so that the transports are closed when this returns


async def _tick(server: uvicorn.Server) -> None:
    while True:
        await server.on_tick(0)
        await asyncio.sleep(_TICK_S)
