"""The HTTP server of a router: uvicorn on the router's loop; signals stay with the process's own shell."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from baton_core.errors import InvalidConfigError
from baton_router.http.connections.acceptor import Acceptor
from baton_router.http.connections.bounded_protocol import BoundedProtocol
from baton_router.http.connections.open_connections import OpenConnections
from baton_router.http.connections.transports import abort
from baton_router.process.http_settings import ConnectionLimits
from baton_service.tcp import listen_at
from baton_service.unix_listener import listen_at_path


def listen(host: str, port: int, *, is_shared: bool = False) -> list[socket.socket]:
    """Listen at every address of `host`, all with one port; port 0 chooses it.

    Raises:
        InvalidConfigError: an address cannot be bound; the message names the flags and what is allowed.
    """
    with ExitStack() as opened:
        listeners: list[socket.socket] = []
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for address in dict.fromkeys(str(each[0]) for *_, each in found):
                bound_port = listeners[0].getsockname()[1] if listeners else port
                listener = listen_at(address, bound_port, is_shared=is_shared)
                opened.enter_context(listener)
                listeners.append(listener)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "that is not a host name"
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise InvalidConfigError(
                f"address of --host and --port is {shown!r}, which cannot be bound ({reason}); "
                "allowed: host:port with an address of this machine and a port that is not in use"
            ) from None
        opened.pop_all()
        return listeners


def listen_on(path: str) -> socket.socket:
    """Listen at a Unix socket; one that nobody serves any more is replaced.

    Raises:
        InvalidConfigError: the path cannot be bound; the message names the flag and what is allowed.
    """
    try:
        return listen_at_path(path)
    except OSError as error:
        raise InvalidConfigError(
            f"--uds is {path!r}, which cannot be bound ({error.strerror or error}); "
            "allowed: a path in a folder to write to, where no other server listens"
        ) from None


_TICK_S: Final = 1.0
"""Interval at which uvicorn renews the `date` header."""
_END_WITHIN_S: Final = 0.5
"""Time that calls have to end by themselves once their connections are cut off."""


class HttpServer:
    """Bind it, start it, stop it: once each, on one loop."""

    def __init__(self) -> None:
        self._listeners: list[socket.socket] = []
        self._server: uvicorn.Server | None = None
        self._acceptor: Acceptor | None = None
        self._path = ""
        self.port = 0
        """The bound port."""

    def bind(self, host: str, port: int, *, is_shared: bool = False) -> None:
        """Take the port; who connects waits until `start`.

        Args:
            is_shared: other processes take it too.

        Raises:
            InvalidConfigError: it cannot be taken.
        """
        self._listeners = listen(host, port, is_shared=is_shared)
        self.port = self._listeners[0].getsockname()[1]

    def bind_path(self, path: str) -> None:
        """Take a Unix socket in the place of a port, as `bind`.

        Raises:
            InvalidConfigError: it cannot be taken.
        """
        self._listeners = [listen_on(path)]
        self._path = path

    async def start(
        self, app: ASGIApp, *, root_path: str, limits: ConnectionLimits, tls: ssl.SSLContext | None = None
    ) -> None:
        """Serve `app`, without `tls` in plain text; clients' paths may begin with `root_path`, or lack it."""
        config = uvicorn.Config(
            _below(root_path, app) if root_path else app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=cast(int, limits.idle_timeout_s),
        )
        config.load()
        self._server = uvicorn.Server(config)
        connections = OpenConnections(limits.max_connections)
        make_protocol = partial(
            BoundedProtocol,
            limits,
            connections,
            config=config,
            server_state=self._server.server_state,
            app_state={},
        )
        await self._server.on_tick(0)  # it makes the headers that all responses have
        self._acceptor = Acceptor(
            self._listeners,
            make_protocol,
            connections,
            tls=tls,
            handshake_timeout_s=limits.header_timeout_s,
        )
        self._ticking = asyncio.create_task(_tick(self._server))

    async def drain(self) -> None:
        """Close each connection with its next answer, which says so, and idle ones now; new ones get one."""
        assert self._server is not None, "it serves"
        self._server.config.encoded_headers.append((b"connection", b"close"))
        await self._server.on_tick(0)  # it makes the headers that all responses have
        for connection in list(self._server.server_state.connections):
            assert isinstance(connection, BoundedProtocol)
            connection.end_with_answer()

    async def stop(self, within_s: float) -> None:
        """Close idle connections, give running calls `within_s` to end, then cut them off."""
        if self._path:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        if self._server is None or self._acceptor is None:
            for listener in self._listeners:
                listener.close()
            return
        self._ticking.cancel()
        self._acceptor.close()
        state = self._server.server_state
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=within_s)
        for connection in list(state.connections):
            abort(connection.transport)
        await asyncio.sleep(0)  # so that the transports are closed when this returns
        if state.tasks:  # they learn that their clients are gone
            await asyncio.wait(state.tasks, timeout=_END_WITHIN_S)
        calls = list(state.tasks)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


def _below(root_path: str, app: ASGIApp) -> ASGIApp:
    """Return an app whose paths all begin with `root_path`, which a proxy in front may have removed."""

    async def rooted(scope: Scope, receive: Receive, send: Send) -> None:
        removed = "" if scope["path"].startswith(f"{root_path}/") else root_path
        paths = {"path": removed + scope["path"], "raw_path": removed.encode() + scope["raw_path"]}
        await app({**scope, "root_path": root_path, **paths}, receive, send)

    return rooted


async def _tick(server: uvicorn.Server) -> None:
    while True:
        await server.on_tick(0)
        await asyncio.sleep(_TICK_S)
