"""A receiver of traces: OpenTelemetry's own service, served over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """One span, and whose it is. Ids are in hexadecimal digits, times in nanoseconds of the wall's clock."""

    service: str
    instance_id: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    is_error: bool


class OtlpReceiver(TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.address = ""
        self._spans: list[ReceivedSpan] = []
        self._lock = threading.Lock()

    def Export(  # noqa: N802 (name of the protocol)
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        self.take(request)
        return pb.ExportTraceServiceResponse()

    def take(self, request: pb.ExportTraceServiceRequest) -> None:
        with self._lock:
            for of_process in request.resource_spans:
                resource = _read(of_process.resource.attributes)
                for of_scope in of_process.scope_spans:
                    self._spans += [_received(span, resource) for span in of_scope.spans]

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All that came so far."""
        with self._lock:
            return list(self._spans)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]


@contextmanager
def receiving() -> Iterator[OtlpReceiver]:
    """Serve on a port of the system's choice until the block is left."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def _received(span: WireSpan, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        service=resource["service.name"],
        instance_id=resource["service.instance.id"],
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_read(span.attributes),
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _read(attributes: list[KeyValue]) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
