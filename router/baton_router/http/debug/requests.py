"""Recent requests: timings, placement decisions and the sources of their prompt tokens.

Who asks sees the requests of its own key; with `--enable-operator-routes` those of all. Each process of a
router shows those of all processes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import msgspec

from baton_core.requests.phases import Phase, PhaseName
from baton_router.core.flow.request_record import RequestRecord, WorkerPart
from baton_router.group.frames import COUNTS, METRICS, RECENT
from baton_router.http.calls import Call
from baton_router.http.debug.counted import count
from baton_router.http.debug.recent import recent_part
from baton_router.http.debug.schemas import ROUTER, Hop, RequestDetails, RequestList, RequestSummary, Span
from baton_router.http.errors import HttpError
from baton_router.http.kept import check_limit
from baton_router.http.route import Query, Routes, Tag
from baton_router.metrics.outliers import outliers_of
from baton_router.metrics.router_metrics import RouterMetrics
from baton_router.process.generation_service import GenerationService

ROUTES: Final = Routes(tag=Tag.DEBUG)

MAX_LISTED: Final = 256
_ID_PREFIXES: Final = (
    *("chatcmpl-", "cmpl-", "msg_", "resp_"),
    *("embd-", "pool-", "classify-", "score-", "rerank-"),
)
"""Prefixes that ids in replies put before the request's name."""
_OF_RESPONSE: Final = re.compile("resp_(.+)-[0-9a-f]{16}")
"""Id of a response whose request was named by a header; the group is that name."""


class ListQuery(Query, kw_only=True):
    limit: int = 32
    """Requests to list, 1 to 256."""


@ROUTES.route("/debug/requests", "listRequests", "The latest requests, in short", errors=(400,))
async def list_requests(call: Call[None], query: ListQuery) -> RequestList:
    """Raises InvalidRequestError: a limit is out of range."""
    limit = query.limit
    check_limit(limit, MAX_LISTED)
    pages = await ask_processes(call, Question(tenant=_visible_tenant(call), limit=limit).encode())
    found = [one for page in pages for one in msgspec.json.decode(page, type=RequestList).requests]
    found.sort(key=lambda one: one.age_s)
    return RequestList(requests=found[:limit])


@ROUTES.route(
    "/debug/requests/{request_id:path}",
    "retrieveRequest",
    "Where a request's time went, why it ran where it did, and where its prompt came from",
    errors=(404,),
)
async def show_request(call: Call[None]) -> RequestDetails:
    """Raises HttpError: 404, it is not known, or not this key's."""
    name, tenant = call.request.path_params["request_id"], _visible_tenant(call)
    names = [name, *(name.removeprefix(prefix) for prefix in _ID_PREFIXES if name.startswith(prefix))]
    if (response := _OF_RESPONSE.fullmatch(name)) is not None:
        names.append(response[1])
    allowed = "the id of one of this key's latest requests at this router"
    for one in names:
        for page in await ask_processes(call, Question(tenant=tenant, name=one).encode()):
            return msgspec.json.decode(page, type=RequestDetails)
        if await ask_processes(call, Question(tenant=tenant, name=f"{one}-0").encode()):
            allowed = f"{one}-0, {one}-1 and so on, one for each prompt of that call"
            break
    text = f"request_id is {name!r}; allowed: {allowed}"
    raise HttpError(404, "request_not_found", text, param="request_id")


def _visible_tenant(call: Call[None]) -> str | None:
    """Return the tenant whose requests the caller may see; None is all."""
    return None if call.state.settings.enable_operator_routes else call.tenant


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Asks the processes of a router for their latest requests, or for one."""

    tenant: str | None
    """Only the requests of this tenant; None is all."""
    limit: int = 0
    name: str | None = None
    """Name of the one request; None asks for the latest."""

    def encode(self) -> bytes:
        """Return it as a line."""
        return msgspec.json.encode(self)


def answer_process(question: bytes, service: GenerationService, metrics: RouterMetrics) -> bytes:
    """Answer a process of this router; empty for none.

    With its metrics, `Counted`, a `RecentPart`, a `RequestList`, or `RequestDetails`.
    """
    if question == METRICS:
        return metrics.exposition(is_ready=service.is_ready).text()
    if question == COUNTS:
        return msgspec.json.encode(count(service, metrics))
    if question.startswith(RECENT):
        since = float(question.removeprefix(RECENT))
        return msgspec.json.encode(recent_part(metrics, since))
    asked = msgspec.json.decode(question, type=Question)
    log, now = service.router.core.log, asyncio.get_running_loop().time()
    if asked.name is None:
        seen = (record for record in log.recent() if _is_seen(record, asked.tenant))
        latest = [summary_of(now, record, metrics) for record in islice(seen, asked.limit)]
        return msgspec.json.encode(RequestList(requests=latest))
    record = log.get(asked.name)
    if record is None or not _is_seen(record, asked.tenant):
        return b""
    return msgspec.json.encode(details_of(now, record))


async def ask_processes(call: Call[None], question: bytes) -> list[bytes]:
    """Return the answers of all processes of this router that have one."""
    state = call.state
    if state.ask_processes is not None:
        return list((await state.ask_processes(question)).values())
    page = answer_process(question, state.service, state.metrics)
    return [page] if page else []


def _is_seen(record: RequestRecord, tenant: str | None) -> bool:
    return tenant is None or record.context.tenant == tenant


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
        own = Span(process=hop.process, name=phase.name, start_s=phase.start_s, end_s=phase.end_s)
        span = spans.setdefault(phase.name, own)
        span.end_s = max(span.end_s, phase.end_s)
    return list(spans.values())


def _shifted(phases: Iterable[Phase], start_s: float) -> list[Phase]:
    moved = (replace(phase, start_s=phase.start_s - start_s, end_s=phase.end_s - start_s) for phase in phases)
    return sorted(moved, key=lambda phase: (phase.start_s, phase.end_s))
