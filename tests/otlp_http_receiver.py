"""A receiver of traces over HTTP: OpenTelemetry's own messages in the bodies of POST."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb

from tests.otlp_receiver import OtlpReceiver

TRACES = "/v1/traces"


class OtlpHttpReceiver(OtlpReceiver):
    """Keeps what it is sent, and where to."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []


@contextmanager
def receiving_http(path: str = TRACES) -> Iterator[OtlpHttpReceiver]:
    """Serve `path` on a port of the system's choice until the block is left; any other is 404."""
    receiver = OtlpHttpReceiver()

    class Calls(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.paths.append(self.path)
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            if self.path != path or self.headers["content-type"] != "application/x-protobuf":
                self._answer(404, b"")
                return
            is_gzip = self.headers.get("content-encoding") == "gzip"
            receiver.take(pb.ExportTraceServiceRequest.FromString(gzip.decompress(body) if is_gzip else body))
            self._answer(200, pb.ExportTraceServiceResponse().SerializeToString())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (name of the base class)
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Calls)
    receiver.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
