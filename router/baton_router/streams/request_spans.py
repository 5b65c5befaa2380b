"""Spans of a request, its root span and those of its router, made of its record once it is over.

The names of attributes are those of OpenTelemetry's conventions for generative models, those of vLLM beside
them, and `baton.` before Baton's own. Prompts and replies are not in them.
"""

from __future__ import annotations

from collections.abc import Mapping

from baton_core.requests.phases import Phase, PhaseName
from baton_core.requests.request_context import RequestContext
from baton_core.sessions.router_messages import RequestSpec
from baton_router.core.flow.request_record import RequestRecord
from baton_router.core.placement.placement_record import Decision
from baton_router.core.router_events import FailRequest, FinishRequest
from baton_router.requests.request_text import RequestText
from baton_service.tracing import NO_TRACING, ROOT, Attribute, Span, Tracing, phase_span


class RequestSpans:
    """Spans of one router's requests."""

    def __init__(self, tracing: Tracing = NO_TRACING, model_name: str = "") -> None:
        self._tracing = tracing
        self._model_name = model_name

    def begin(self, context: RequestContext) -> str:
        """Return the trace context of a request; empty if it is not traced."""
        return self._tracing.begin(context.traceparent)

    def on_ended(
        self,
        now: float,
        text: RequestText,
        end: FinishRequest | FailRequest,
        record: RequestRecord | None,
        *,
        is_chat: bool = False,
        model: str = "",
    ) -> None:
        """Export the spans of a request that is over; `model` is the name asked for, empty without one."""
        if record is None or not record.traceparent:
            return
        ended_s = now if record.ended_s is None else record.ended_s
        root = Span(
            name=ROOT,
            start_s=record.started_s,
            end_s=ended_s,
            attributes=self._request_attributes(text.spec, model or self._model_name, is_chat=is_chat)
            | _response_attributes(text, end, record, ended_s),
            error=end.code if isinstance(end, FailRequest) else "",
        )
        self._tracing.export_root(now, record.traceparent, record.context.traceparent, root)
        decisions = {decision.at_s: decision for decision in record.decisions}
        spans = [_span(phase, decisions) for phase in record.phases]
        self._tracing.export(now, record.traceparent, spans)

    def _request_attributes(self, spec: RequestSpec, model: str, *, is_chat: bool) -> dict[str, Attribute]:
        attributes: dict[str, Attribute | None] = {
            "gen_ai.operation.name": _operation(spec, is_chat=is_chat),
            "gen_ai.provider.name": "baton",
            "gen_ai.request.id": spec.request_id,
            "gen_ai.request.model": model,
            "gen_ai.response.model": self._model_name,
        }
        if spec.pooling is None:
            names = ("max_tokens", "temperature", "top_p", "n")
            attributes |= {f"gen_ai.request.{name}": getattr(spec.params, name) for name in names}
        return {name: value for name, value in attributes.items() if value is not None}


def _operation(spec: RequestSpec, *, is_chat: bool) -> str:
    """Return the name of the conventions where they have one."""
    if spec.pooling is None:
        return "chat" if is_chat else "text_completion"
    return "embeddings" if spec.pooling.task.is_embedding else spec.pooling.task


def _response_attributes(
    text: RequestText, end: FinishRequest | FailRequest, record: RequestRecord, ended_s: float
) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": text.num_tokens,
        "gen_ai.usage.prompt_tokens": record.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": text.num_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
        "gen_ai.latency.e2e": ended_s - record.started_s,
    }
    if record.first_token_s is not None:
        attributes["gen_ai.latency.time_to_first_token"] = record.first_token_s - record.started_s
    if text.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = tuple(text.finish_reasons)
    if isinstance(end, FailRequest):
        return attributes | {"error.type": end.code}
    timings = end.timings
    return attributes | {
        "gen_ai.latency.time_in_queue": timings.queue_s,
        "baton.prefill_worker": timings.prefill_worker,
        "baton.decode_worker": timings.decode_worker,
    }


def _span(phase: Phase, decisions: Mapping[float, Decision]) -> Span:
    decision = decisions.get(phase.start_s) if phase.name is PhaseName.PLACE else None
    return phase_span(phase, {} if decision is None else _placement_attributes(decision))


def _placement_attributes(decision: Decision) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "baton.placement.policy": decision.policy,
        "baton.placement.reason": decision.reason,
        "baton.placement.num_candidates": decision.num_candidates,
    }
    if (chosen := decision.chosen) is None:
        return attributes
    return attributes | {
        "baton.placement.prefill_worker": chosen.prefill,
        "baton.placement.decode_worker": chosen.decode,
        "baton.placement.num_cached_tokens": chosen.num_cached_tokens,
        "baton.placement.predicted_ttft_s": chosen.cost.ttft_s,
        "baton.placement.predicted_gap_s": chosen.cost.gap_s,
    }
