"""The HTTP of a service that has none of its own, `/metrics` and probes, on threads beside its loop."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from baton_core.errors import InvalidConfigError
from baton_service.exposition import CONTENT_TYPE
from baton_service.keys import AUTHORIZATION
from baton_service.tcp import listen_at
from baton_worker.probes import Probes

_READ_WITHIN_S: Final = 5.0
MAX_CALLS: Final = 32
"""Connections at a time; one more ends the oldest that has sent no request."""
_PLACE_WITHIN_S: Final = 5.0
"""An ended connection's thread frees its place at once; only a starved machine takes longer."""
_log = logging.getLogger(__name__)


class MetricsServer:
    """Bound when it is made; serves from `start` to `close`.

    Args:
        probes: answers.
        tls: without it, in plain text.

    Raises:
        InvalidConfigError: the port cannot be taken.
    """

    def __init__(self, host: str, port: int, probes: Probes, tls: ssl.SSLContext | None = None) -> None:
        try:
            self._server = _server(host, port, probes, tls)
        except OSError as error:
            raise InvalidConfigError(
                f"--metrics-port is {port}, which cannot be taken on {host} ({error.strerror}); "
                "allowed: a free port, or 0 for any"
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Free the port. Blocks for the time of an answer, or of a connection's wait for its place."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving_metrics(
    host: str, port: int, probes: Probes, tls: ssl.SSLContext | None = None
) -> Iterator[MetricsServer]:
    """Serve from here to the end of the block.

    The arguments are those of `MetricsServer`.

    Raises:
        InvalidConfigError: the port cannot be taken.
    """
    server = MetricsServer(host, port, probes, tls)
    server.start()
    _log.info("metrics at %s://%s:%d/metrics", "https" if tls else "http", host, server.port)
    try:
        yield server
    finally:
        server.close()


def _server(host: str, port: int, probes: Probes, tls: ssl.SSLContext | None) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = _READ_WITHIN_S
        server_version, sys_version = "baton", ""

        def do_GET(self) -> None:
            server.silent.pop(self.request, None)
            self._reply(*probes.get(self._asked, self.headers.get(AUTHORIZATION, "")))

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            server.silent.pop(self.request, None)
            answer = probes.post(
                self._asked,
                self.headers.get(AUTHORIZATION, ""),
                is_local=_is_loopback(self.client_address[0]),
                is_page="Origin" in self.headers or "Sec-Fetch-Site" in self.headers,
            )
            self.close_connection = True  # a body, if there is one, is not read
            self._reply(*answer)

        @property
        def _asked(self) -> str:
            return self.path.partition("?")[0]

        def _reply(self, status: HTTPStatus, body: bytes) -> None:
            self.send_response(status)
            is_metrics = status is HTTPStatus.OK and body
            self.send_header("Content-Type", CONTENT_TYPE if is_metrics else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            if status is HTTPStatus.UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (name of the base's)
            """Scrapes are not worth a line each."""

    server = _BoundedServer(listen_at(host.strip("[]"), port), Handler, tls)
    return server


def _is_loopback(host: str) -> bool:
    """Return True for a peer on this machine, also an IPv4 one of a socket that is bound to `::`."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


class _BoundedServer(ThreadingHTTPServer):
    """A thread for each of `MAX_CALLS` connections, at a socket that listens."""

    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        handler: type[BaseHTTPRequestHandler],
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.silent: dict[socket.socket, None] = {}
        """Connections that have sent no request yet, the oldest first."""
        self._places = threading.BoundedSemaphore(MAX_CALLS)
        self._tls = tls

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._takes_place():
            self.silent[request] = None
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.silent.pop(request, None)
            self._places.release()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._tls is None:
            return connection, address
        # The handshake belongs to the thread that answers: here it would hold up all others.
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(error := sys.exception(), OSError):  # the client is gone, or speaks no TLS
            _log.error("a call of the metrics port failed", exc_info=error)

    def _takes_place(self) -> bool:
        """Take a free place, else end the connection that has been silent longest and take the next."""
        if self._places.acquire(blocking=False):
            return True
        for connection in tuple(self.silent)[:1]:
            with suppress(OSError):  # of the plain socket: TLS belongs to its thread
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        return self._places.acquire(timeout=_PLACE_WITHIN_S)
