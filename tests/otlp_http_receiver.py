"""A receiver of traces over HTTP: OpenTelemetry's own messages in the bodies of POST."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb

from tests.http_threads import Calls, serving_calls
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

    class Exports(Calls):
        def do_POST(self) -> None:
            body = self.body()
            receiver.paths.append(self.path)
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            if self.path != path or self.headers["content-type"] != "application/x-protobuf":
                self.reply(404, b"")
                return
            is_gzip = self.headers.get("content-encoding") == "gzip"
            receiver.take(pb.ExportTraceServiceRequest.FromString(gzip.decompress(body) if is_gzip else body))
            answer = pb.ExportTraceServiceResponse().SerializeToString()
            self.reply(200, answer, content_type="application/x-protobuf")

    with serving_calls(Exports) as receiver.address:
        yield receiver
