"""A recent request as the routes below `/debug` show it: whole, or in short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from typing import Any

from baton_core.requests.phases import Phase, PhaseName
from baton_router.core.flow.request_record import RequestRecord, WorkerPart
from baton_router.http.debug.schemas import ROUTER, Hop, RequestDetails, RequestSummary, Span
from baton_router.metrics.outliers import outliers_of
from baton_router.metrics.router_metrics import RouterMetrics


def _facts(now: float, record: RequestRecord) -> dict[str, Any]:
    """Return the fields of `RequestFacts`."""
    start_s, first_s = record.started_s, record.first_token_s
    state = "running" if record.ended_s is None else "finished" if record.code is None else "failed"
    return {
        "request_id": record.request_id,
        "state": state,
        "code": record.code,
        "age_s": now - start_s,
        "duration_s": (now if record.ended_s is None else record.ended_s) - start_s,
        "first_token_s": None if first_s is None else first_s - start_s,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_cached_tokens": record.num_cached_tokens,
        "num_output_tokens": record.num_output_tokens,
    }


def details_of(now: float, record: RequestRecord) -> RequestDetails:
    decisions = [replace(one, at_s=one.at_s - record.started_s) for one in record.decisions]
    return RequestDetails(
        **_facts(now, record),
        message=record.message,
        session_id=record.context.session_id,
        traceparent=record.context.traceparent,
        hops=list(_hops(record)),
        decisions=decisions,
    )


def summary_of(now: float, record: RequestRecord, metrics: RouterMetrics) -> RequestSummary:
    slo, window = metrics.requests.latencies.slo, metrics.sampler.latencies
    return RequestSummary(
        **_facts(now, record),
        per_token_s=record.per_token_s,
        outliers=outliers_of(record, now, slo, window),
        spans=[span for hop in _hops(record) for span in _spans(hop)],
    )


def _hops(record: RequestRecord) -> Iterator[Hop]:
    """The router's own, then those of each attempt: of the prefill worker, then of the decode worker."""
    chosen = [decision.chosen for decision in record.decisions if decision.chosen is not None]
    prefillers = {candidate.prefill for candidate in chosen}
    yield Hop(process=ROUTER, phases=_shifted(record.phases, record.started_s))
    for part in sorted(record.parts, key=lambda part: _place_in_order(part, prefillers)):
        yield Hop(
            process=part.worker_id,
            attempt_id=part.attempt_id,
            phases=_shifted(part.phases, record.started_s),
            num_left_out=part.num_left_out,
            sources=part.sources,
        )


def _place_in_order(part: WorkerPart, prefillers: Set[str]) -> tuple[int, str, bool]:
    """Times do not decide: they are off by as long as reports take. Later attempts have longer names."""
    return len(part.attempt_id), part.attempt_id, part.worker_id not in prefillers


def _spans(hop: Hop) -> list[Span]:
    spans: dict[PhaseName, Span] = {}
    for phase in hop.phases:
        if (span := spans.get(phase.name)) is None:
            spans[phase.name] = Span(
                process=hop.process, name=phase.name, start_s=phase.start_s, end_s=phase.end_s
            )
        else:
            span.end_s = max(span.end_s, phase.end_s)
    return list(spans.values())


def _shifted(phases: Iterable[Phase], start_s: float) -> list[Phase]:
    moved = (replace(phase, start_s=phase.start_s - start_s, end_s=phase.end_s - start_s) for phase in phases)
    return sorted(moved, key=lambda phase: (phase.start_s, phase.end_s))
