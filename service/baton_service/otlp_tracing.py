"""Exports spans by OTLP, over gRPC or HTTP, on a thread of OpenTelemetry's own.

The spans are made whole, from times that have passed, so the SDK's span objects are built here and given to
its processor directly. Its queue is bounded: spans that a receiver does not take in time are dropped.
The SDK's environment variables hold where no setting does: OTEL_EXPORTER_OTLP_HEADERS,
OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_BSP_*, OTEL_RESOURCE_ATTRIBUTES.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from baton_service.tracing import FLUSH_WITHIN_S, ROOT, OtlpProtocol, Span, TracingSettings

_HEADER: Final = "traceparent"
_HTTP_PATH: Final = "/v1/traces"
_NS_PER_S: Final = 1_000_000_000


class OtlpTracing:
    """The `Tracing` of a process that has an endpoint."""

    def __init__(self, settings: TracingSettings, *, service: str, instance_id: str) -> None:
        self._ids = RandomIdGenerator()
        self._propagator = TraceContextTextMapPropagator()
        self._sampler = ParentBased(TraceIdRatioBased(settings.sample_ratio))
        release = version("baton")
        self._scope = InstrumentationScope("baton", release)
        self._resource = Resource.create(
            {SERVICE_NAME: service, SERVICE_INSTANCE_ID: instance_id, SERVICE_VERSION: release}
        )
        self._exporter = _make_exporter(settings)
        self._processor = BatchSpanProcessor(self._exporter)

    def begin(self, parent: str) -> str:
        context = self._propagator.extract({_HEADER: parent})
        client = get_current_span(context).get_span_context()
        trace_id = client.trace_id if client.is_valid else self._ids.generate_trace_id()
        decision = self._sampler.should_sample(context, trace_id, ROOT, SpanKind.SERVER).decision
        is_sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT
        return f"00-{trace_id:032x}-{self._ids.generate_span_id():016x}-{flags:02x}"

    def export_root(self, now: float, traceparent: str, parent: str, span: Span) -> None:
        context, client = self._read(traceparent), self._read(parent)
        if context.trace_flags.sampled:
            self._emit(_offset_ns(now), context, client if client.is_valid else None, span, SpanKind.SERVER)

    def export(self, now: float, traceparent: str, spans: Sequence[Span]) -> None:
        parent = self._read(traceparent)
        if not parent.trace_flags.sampled:
            return
        offset_ns = _offset_ns(now)
        for span in spans:
            context = SpanContext(
                trace_id=parent.trace_id,
                span_id=self._ids.generate_span_id(),
                is_remote=False,
                trace_flags=parent.trace_flags,
            )
            self._emit(offset_ns, context, parent, span, SpanKind.INTERNAL)

    def close(self) -> None:
        flush = threading.Thread(target=self._processor.shutdown, name="trace-flush", daemon=True)
        flush.start()
        flush.join(FLUSH_WITHIN_S)
        if flush.is_alive():
            self._exporter.shutdown()

    def _read(self, traceparent: str) -> SpanContext:
        """Return the context in a header; an invalid one where there is none."""
        context = self._propagator.extract({_HEADER: traceparent})
        return get_current_span(context).get_span_context()

    def _emit(
        self, offset_ns: int, context: SpanContext, parent: SpanContext | None, span: Span, kind: SpanKind
    ) -> None:
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=context,
                parent=parent,
                resource=self._resource,
                attributes=span.attributes,
                kind=kind,
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
                start_time=offset_ns + int(span.start_s * _NS_PER_S),
                end_time=offset_ns + int(span.end_s * _NS_PER_S),
                instrumentation_scope=self._scope,
            )
        )


def _make_exporter(settings: TracingSettings) -> SpanExporter:
    """Return the configured exporter; only its own packages are imported."""
    if settings.protocol is OtlpProtocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=settings.endpoint)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    endpoint = urlsplit(settings.endpoint)
    if endpoint.path in ("", "/"):
        endpoint = endpoint._replace(path=_HTTP_PATH)
    return HttpExporter(endpoint=endpoint.geturl())


def _offset_ns(now: float) -> int:
    """Return the offset from the loop's clock, on which it is `now`, to the wall clock."""
    return time.time_ns() - int(now * _NS_PER_S)
