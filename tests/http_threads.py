"""Servers of HTTP/1.1 that a test writes in a few lines, each on a thread of its own."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Calls(BaseHTTPRequestHandler):
    """Writes no log; its `do_` methods are those of a test."""

    def log_message(self, *_: object) -> None: ...

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving_calls(calls: type[Calls], context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve on a port of the system's choice until the block is left; gives host:port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), calls) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
