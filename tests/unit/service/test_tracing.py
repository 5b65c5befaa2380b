"""Whose span a request's is, whether it is wanted, and a receiver that is not there."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from baton import EngineArgs
from baton.config.worker_parts import worker_settings
from baton_core.errors import InvalidConfigError
from baton_core.requests.phases import Phase, PhaseName, PhaseReport, TokenSources
from baton_service.tracing import (
    FLUSH_WITHIN_S,
    NO_TRACING,
    PROTOCOL_VARIABLES,
    OtlpProtocol,
    Span,
    Tracing,
    TracingSettings,
    read_tracing,
    report_spans,
)
from baton_service.tracing_start import start_tracing
from tests.otlp_http_receiver import receiving_http
from tests.otlp_receiver import OtlpReceiver, receiving

pytestmark = pytest.mark.slow

CLIENTS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SPAN = Span(name="place", start_s=1.0, end_s=2.0, attributes={"baton.num_candidates": 2})


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with receiving() as started:
        yield started


def make_tracing(address: str, sample_ratio: float = 1.0) -> Tracing:
    settings = TracingSettings(endpoint=f"http://{address}", sample_ratio=sample_ratio)
    return start_tracing(settings, service="baton-router", instance_id="r1")


def test_spans_keep_their_times_their_attributes_and_their_parent(receiver: OtlpReceiver) -> None:
    tracing = make_tracing(receiver.address)
    traceparent = tracing.begin(CLIENTS)
    before_ns = time.time_ns()
    tracing.export_root(
        5.0, traceparent, CLIENTS, Span(name="llm_request", start_s=1.0, end_s=4.0, error="no")
    )
    tracing.export(5.0, traceparent, [SPAN])
    after_ns = time.time_ns()
    tracing.close()
    root, place = sorted(receiver.spans, key=lambda span: span.name)
    _, trace_id, root_id, _ = traceparent.split("-")
    assert {(span.trace_id, span.service, span.instance_id) for span in (root, place)} == {
        (trace_id, "baton-router", "r1")
    }
    assert (root.span_id, root.parent_id, root.is_error) == (root_id, CLIENTS.split("-")[2], True)
    assert (place.parent_id, place.attributes, place.is_error) == (root_id, dict(SPAN.attributes), False)
    assert root.end_ns - root.start_ns == 3 * 10**9
    assert place.start_ns == pytest.approx(root.start_ns, abs=after_ns - before_ns)
    assert before_ns <= place.end_ns + 3 * 10**9 <= after_ns


def test_a_request_without_a_client_begins_a_trace_of_its_own(receiver: OtlpReceiver) -> None:
    tracing = make_tracing(receiver.address)
    first, second = tracing.begin(""), tracing.begin("no traceparent")
    assert first.split("-")[1] != second.split("-")[1]
    tracing.export_root(2.0, first, "", SPAN)
    tracing.close()
    assert [span.parent_id for span in receiver.spans] == [""]


@pytest.mark.parametrize(
    ("ratio", "client", "is_sampled"),
    [(1.0, "", True), (0.0, "", False), (0.0, CLIENTS, True), (1.0, CLIENTS[:-2] + "00", False)],
)
def test_a_client_decides_whether_it_is_traced_and_else_the_ratio(
    receiver: OtlpReceiver, ratio: float, client: str, is_sampled: bool
) -> None:
    tracing = make_tracing(receiver.address, ratio)
    traceparent = tracing.begin(client)
    assert traceparent.endswith("-01" if is_sampled else "-00")
    tracing.export_root(2.0, traceparent, client, SPAN)
    tracing.export(2.0, traceparent, [SPAN])
    tracing.close()
    assert len(receiver.spans) == (2 if is_sampled else 0)


def test_a_share_of_the_requests_is_sampled() -> None:
    tracing = make_tracing("127.0.0.1:1", 0.25)
    num_sampled = sum(tracing.begin("").endswith("-01") for _ in range(2000))
    tracing.close()
    assert 350 < num_sampled < 650


def test_a_receiver_that_is_not_there_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    tracing = make_tracing("127.0.0.1:1")
    traceparent = tracing.begin("")
    slowest_s = 0.0
    for _ in range(5000):
        began_s = time.thread_time()
        tracing.export(2.0, traceparent, [SPAN])
        slowest_s = max(slowest_s, time.thread_time() - began_s)
    assert slowest_s < 0.5
    began_s = time.monotonic()
    tracing.close()
    assert time.monotonic() - began_s < FLUSH_WITHIN_S + 20.0


def test_a_report_without_a_trace_is_not_exported(receiver: OtlpReceiver) -> None:
    tracing = make_tracing(receiver.address)
    tracing.export(2.0, "", [SPAN])
    tracing.close()
    assert receiver.spans == []


def test_a_report_is_told_with_worker_and_attempt() -> None:
    report = PhaseReport(
        request_id="r\t1",
        phases=(
            Phase(name=PhaseName.PREFILL_CHUNK, start_s=1.0, end_s=2.0, num_tokens=7),
            Phase(name=PhaseName.TRANSFER, start_s=2.0, end_s=3.0, num_bytes=64, peer="p"),
        ),
        sources=TokenSources(),
        sent_s=4.0,
    )
    chunk, transfer = report_spans("d", report)
    whose = {"baton.worker_id": "d", "baton.attempt_id": "r\t1"}
    assert (chunk.name, chunk.attributes) == ("prefill_chunk", {**whose, "baton.num_tokens": 7})
    assert transfer.attributes == {**whose, "baton.num_bytes": 64, "baton.peer": "p"}


def test_without_an_endpoint_nothing_is_imported() -> None:
    settings = TracingSettings()
    assert start_tracing(settings, service="baton-router", instance_id="r1") is NO_TRACING
    assert NO_TRACING.begin(CLIENTS) == ""
    code = (
        "import sys, baton_router.main; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("protocol", OtlpProtocol)
@pytest.mark.parametrize(
    "endpoint",
    ["localhost:4317", "grpc://localhost:4317", "http", "http://", "http://h:0", "http://h:x", "http://["],
)
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str, protocol: OtlpProtocol) -> None:
    said = f"--otlp-traces-endpoint is {endpoint!r}; allowed: a URL such as http://host:431"
    with pytest.raises(InvalidConfigError, match=re.escape(said)):
        TracingSettings(endpoint=endpoint, protocol=protocol)


def test_a_path_that_grpc_cannot_use_is_refused() -> None:
    endpoint = "http://localhost:4318/v1/traces"
    assert TracingSettings(endpoint=endpoint, protocol=OtlpProtocol.HTTP).endpoint == endpoint
    said = f"--otlp-traces-endpoint is {endpoint!r}; allowed: a URL without a path over gRPC, or "
    with pytest.raises(InvalidConfigError, match=re.escape(f"{said}--otlp-traces-protocol http/protobuf")):
        TracingSettings(endpoint=endpoint)


@pytest.mark.parametrize(
    ("endpoint_path", "received_path"),
    [("", "/v1/traces"), ("/", "/v1/traces"), ("/v1/traces", "/v1/traces"), ("/own/path", "/own/path")],
)
def test_spans_go_over_http_too(
    endpoint_path: str, received_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=one")
    with receiving_http(received_path) as receiver:
        settings = read_tracing(f"http://{receiver.address}{endpoint_path}", "http/protobuf")
        tracing = start_tracing(settings, service="baton-router", instance_id="r1")
        traceparent = tracing.begin(CLIENTS)
        tracing.export_root(5.0, traceparent, CLIENTS, Span(name="llm_request", start_s=1.0, end_s=4.0))
        tracing.export(5.0, traceparent, [SPAN])
        tracing.close()
        root, place = sorted(receiver.spans, key=lambda span: span.name)
    _, trace_id, root_id, _ = traceparent.split("-")
    assert (root.trace_id, root.span_id, root.parent_id) == (trace_id, root_id, CLIENTS.split("-")[2])
    assert (place.parent_id, place.attributes, place.service) == (
        root_id,
        dict(SPAN.attributes),
        "baton-router",
    )
    assert root.end_ns - root.start_ns == 3 * 10**9
    assert set(receiver.paths) == {received_path}
    assert receiver.headers[0]["x-tenant"] == "one"


def test_a_receiver_that_is_not_there_over_http_holds_nothing_up() -> None:
    settings = read_tracing("http://127.0.0.1:1", "http/protobuf")
    tracing = start_tracing(settings, service="baton-router", instance_id="r1")
    tracing.export_root(2.0, tracing.begin(""), "", SPAN)
    began_s = time.monotonic()
    tracing.close()
    assert time.monotonic() - began_s < FLUSH_WITHIN_S + 2.0


@pytest.mark.parametrize(
    ("flag", "variables", "protocol"),
    [
        (None, {}, OtlpProtocol.GRPC),
        (None, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, OtlpProtocol.HTTP),
        (None, {"OTEL_EXPORTER_OTLP_PROTOCOL": ""}, OtlpProtocol.GRPC),
        (
            None,
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            OtlpProtocol.GRPC,
        ),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, OtlpProtocol.HTTP),
        ("grpc", {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, OtlpProtocol.GRPC),
        ("http/protobuf", {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, OtlpProtocol.HTTP),
    ],
)
def test_the_protocol_is_the_flags_else_that_of_the_environment(
    flag: str | None, variables: dict[str, str], protocol: OtlpProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROTOCOL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert read_tracing("http://localhost:4318", flag).protocol is protocol


def test_a_worker_exports_by_the_protocol_of_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    endpoint = "http://localhost:4318"
    given = EngineArgs(otlp_traces_endpoint=endpoint, otlp_traces_protocol="http/protobuf")
    expected = TracingSettings(endpoint=endpoint, protocol=OtlpProtocol.HTTP)
    assert worker_settings(given).tracing == expected


def test_a_protocol_of_the_environment_that_is_not_spoken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    said = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json'; allowed: grpc, http/protobuf"
    with pytest.raises(InvalidConfigError, match=said):
        read_tracing("http://localhost:4318", None)
    assert read_tracing("", None) == TracingSettings()


@pytest.mark.parametrize("endpoint", ["", "http://localhost:4318"])
def test_a_flag_with_a_protocol_that_is_not_spoken_is_refused(endpoint: str) -> None:
    said = "--otlp-traces-protocol is 'http/json'; allowed: grpc, http/protobuf"
    with pytest.raises(InvalidConfigError, match=said):
        read_tracing(endpoint, "http/json")


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(InvalidConfigError, match=r"--trace-sample-ratio is .*; allowed: a number"):
        TracingSettings(sample_ratio=ratio)
