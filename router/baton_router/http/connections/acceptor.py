"""Takes the connections of an HTTP server in, as many as may be, without ever running out of descriptors.

asyncio's own server accepts whatever waits before it asks anybody, and logs a traceback for each that it has
no descriptor for.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from baton_router.http.connections.bounded_protocol import BoundedProtocol
from baton_router.http.connections.open_connections import OpenConnections

MAX_ACCEPTED_AT_ONCE: Final = 32
"""Connections that are accepted between two turns of the loop, in which evicted ones are closed."""
_PAUSE_S: Final = 0.1
"""Pause after the system has refused a descriptor."""
_log = logging.getLogger(__name__)


class Acceptor:
    """Accepts from its start to `close`, on the loop that runs.

    Args:
        tls: without it, in plain text.
        handshake_timeout_s: how long a TLS handshake may take.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        make_protocol: Callable[[], BoundedProtocol],
        connections: OpenConnections,
        *,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._connections = connections
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._starting: set[asyncio.Task[Any]] = set()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._listeners = tuple(listeners)
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Stop listening; connections that are open stay."""
        for pause in self._pauses.values():
            pause.cancel()
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners = ()
        for starting in self._starting:
            starting.cancel()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(MAX_ACCEPTED_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listener, error)
                return
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        protocol = self._make_protocol()
        if not self._connections.add(protocol):
            connection.close()
            return
        timeout_s = self._handshake_timeout_s if self._tls else None
        starting = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        )
        protocol.evicted_by(starting.cancel)
        self._starting.add(starting)
        starting.add_done_callback(partial(self._on_started, connection, protocol))

    def _on_started(
        self, connection: socket.socket, protocol: BoundedProtocol, starting: asyncio.Task[Any]
    ) -> None:
        """The connection has a transport now, or was evicted, or its client has failed at TLS."""
        self._starting.discard(starting)
        if starting.cancelled() or starting.exception() is not None:
            self._connections.remove(protocol)
            connection.close()
        if not starting.cancelled() and not isinstance(error := starting.exception(), OSError | None):
            _log.error("a connection could not be taken", exc_info=error)

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Give the system time where it lacks descriptors or memory, and one connection back."""
        _log.warning("a connection cannot be accepted: %s", error.strerror)
        self._connections.evict_one()
        self._loop.remove_reader(listener)
        self._pauses[listener] = self._loop.call_later(
            _PAUSE_S, self._loop.add_reader, listener, self._accept, listener
        )
