"""Phases of a request as spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from baton_core.requests.phases import Phase, PhaseName, PhaseReport
from baton_service.tracing import Attribute, Span

ATTEMPT_ID: Final = "baton.attempt_id"
WORKER_ID: Final = "baton.worker_id"
_NUM_TOKENS: Final = frozenset({PhaseName.PREFILL_CHUNK, PhaseName.DECODE})


def phase_span(phase: Phase, attributes: Mapping[str, Attribute]) -> Span:
    """One phase, with what its process adds."""
    own: dict[str, Attribute] = dict(attributes)
    if phase.name in _NUM_TOKENS:
        own["baton.num_tokens"] = phase.num_tokens
    if phase.name is PhaseName.TRANSFER:
        own |= {"baton.num_bytes": phase.num_bytes, "baton.peer": phase.peer}
    return Span(name=phase.name, start_s=phase.start_s, end_s=phase.end_s, attributes=own)


def report_spans(worker_id: str, report: PhaseReport) -> list[Span]:
    """What a worker did for a request, as that worker exports it."""
    attributes: dict[str, Attribute] = {WORKER_ID: worker_id, ATTEMPT_ID: report.request_id}
    return phase_spans(report.phases, attributes)


def phase_spans(phases: Iterable[Phase], attributes: Mapping[str, Attribute]) -> list[Span]:
    return [phase_span(phase, attributes) for phase in phases]
