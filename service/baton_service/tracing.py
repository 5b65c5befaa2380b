"""Tracing of requests: spans of a process's part, exported once that is over.

Spans are made of records when a request has ended, never while it runs: nothing is done per token, and
without an endpoint nothing is imported. Times are those of the process's own clock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from baton_core.errors import InvalidConfigError
from baton_core.requests.phases import Phase, PhaseName, PhaseReport

ROOT: Final = "llm_request"
"""Name of a request's root span."""
FLUSH_WITHIN_S: Final = 2.0
"""Time that the end of a process waits for the last export."""
PROTOCOL_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""Variables of the environment that name the protocol, the one that comes first."""
Attribute: TypeAlias = str | bool | int | float | Sequence[str]


class OtlpProtocol(StrEnum):
    """The ways in which spans travel, by OpenTelemetry's names."""

    GRPC = "grpc"
    HTTP = "http/protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """Settings of tracing."""

    endpoint: str = ""
    """URL of an OTLP receiver; empty: nothing is traced."""
    protocol: OtlpProtocol = OtlpProtocol.GRPC
    sample_ratio: float = 1.0
    """Share of the requests to trace whose clients do not decide that themselves."""

    def __post_init__(self) -> None:
        if self.endpoint:
            _check_endpoint(self.endpoint, self.protocol)
        if not 0 <= self.sample_ratio <= 1:
            text = f"--trace-sample-ratio is {self.sample_ratio!r}; allowed: a number from 0 to 1"
            raise InvalidConfigError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span: a named interval of time with attributes."""

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    error: str = ""
    """The error in one word; empty without one."""


def read_tracing(endpoint: str, protocol: str | None, sample_ratio: float = 1.0) -> TracingSettings:
    """Settings from flags; without a protocol OpenTelemetry's variables name it, else it is gRPC.

    Raises:
        InvalidConfigError: naming the flag or the variable, its value and what is allowed.
    """
    if protocol:
        chosen = _read_protocol("--otlp-traces-protocol", protocol)
    elif endpoint:
        chosen = _protocol_of_environment()
    else:
        chosen = OtlpProtocol.GRPC
    return TracingSettings(endpoint=endpoint, protocol=chosen, sample_ratio=sample_ratio)


def _protocol_of_environment() -> OtlpProtocol:
    for variable in PROTOCOL_VARIABLES:
        if value := os.environ.get(variable):
            return _read_protocol(variable, value)
    return OtlpProtocol.GRPC


def _read_protocol(origin: str, value: str) -> OtlpProtocol:
    if value not in set(OtlpProtocol):
        raise InvalidConfigError(f"{origin} is {value!r}; allowed: {', '.join(OtlpProtocol)}")
    return OtlpProtocol(value)


def _check_endpoint(endpoint: str, protocol: OtlpProtocol) -> None:
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    is_grpc = protocol is OtlpProtocol.GRPC
    if not is_url:
        allowed = f"a URL such as http://host:{4317 if is_grpc else 4318}, or https:// for TLS"
    elif is_grpc and parts.path not in ("", "/"):
        allowed = f"a URL without a path over gRPC, or --otlp-traces-protocol {OtlpProtocol.HTTP}"
    else:
        return
    raise InvalidConfigError(f"--otlp-traces-endpoint is {endpoint!r}; allowed: {allowed}")


class Tracing(Protocol):
    """Tracing of one process. A `traceparent` is a W3C trace context. Only `close` waits."""

    def begin(self, parent: str) -> str:
        """Choose the root span of a request, below its client's span if that has one, and whether it is
        exported; returns its traceparent, empty without tracing."""
        ...

    def export_root(self, now: float, traceparent: str, parent: str, span: Span) -> None:
        """Export the root span that `begin` has chosen."""
        ...

    def export(self, now: float, traceparent: str, spans: Sequence[Span]) -> None:
        """Export spans below that of `traceparent`, if it is sampled."""
        ...

    def close(self) -> None:
        """Export what waits, within `FLUSH_WITHIN_S`."""
        ...


class _NoTracing:
    def begin(self, parent: str) -> str:
        return ""

    def export_root(self, now: float, traceparent: str, parent: str, span: Span) -> None:
        return

    def export(self, now: float, traceparent: str, spans: Sequence[Span]) -> None:
        return

    def close(self) -> None:
        return


NO_TRACING: Final[Tracing] = _NoTracing()


ATTEMPT_ID: Final = "baton.attempt_id"
WORKER_ID: Final = "baton.worker_id"
_NUM_TOKENS: Final = frozenset({PhaseName.PREFILL_CHUNK, PhaseName.DECODE})


def phase_span(phase: Phase, attributes: Mapping[str, Attribute]) -> Span:
    """One phase, with what its process adds."""
    own: dict[str, Attribute] = dict(attributes)
    if phase.name in _NUM_TOKENS:
        own["baton.num_tokens"] = phase.num_tokens
    if phase.num_drafted:
        own["baton.num_drafted_tokens"] = phase.num_drafted
        own["baton.num_accepted_tokens"] = phase.num_accepted
    if phase.name is PhaseName.TRANSFER:
        own |= {"baton.num_bytes": phase.num_bytes, "baton.peer": phase.peer}
    return Span(name=phase.name, start_s=phase.start_s, end_s=phase.end_s, attributes=own)


def report_spans(worker_id: str, report: PhaseReport) -> list[Span]:
    """Return the spans of a worker's part in a request."""
    attributes: dict[str, Attribute] = {WORKER_ID: worker_id, ATTEMPT_ID: report.request_id}
    return phase_spans(report.phases, attributes)


def phase_spans(phases: Iterable[Phase], attributes: Mapping[str, Attribute]) -> list[Span]:
    return [phase_span(phase, attributes) for phase in phases]
