"""Whose span a request's is, whether it is wanted, and a receiver that is not there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from baton_core.errors import InvalidConfigError
from baton_core.requests.phases import Phase, PhaseName, PhaseReport, TokenSources
from baton_service.phase_spans import report_spans
from baton_service.tracing import FLUSH_WITHIN_S, NO_TRACING, Span, Tracing, TracingSettings, start_tracing
from tests.otlp_receiver import OtlpReceiver, receiving

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
    [
        (1.0, "", True),
        (0.0, "", False),
        (0.0, CLIENTS, True),
        (1.0, CLIENTS[:-2] + "00", False),
    ],
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


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://localhost:4317", "http"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidConfigError, match=rf"--otlp-traces-endpoint is '{endpoint}'; allowed: a URL"):
        TracingSettings(endpoint=endpoint)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(InvalidConfigError, match=r"--trace-sample-ratio is .*; allowed: a number"):
        TracingSettings(sample_ratio=ratio)
