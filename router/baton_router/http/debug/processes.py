"""Questions between the processes of one router, beside their loads: metrics, and recent requests."""

from __future__ import annotations

import asyncio
from itertools import islice

import msgspec

from baton_router.core.flow.request_record import RequestRecord
from baton_router.group.frames import METRICS
from baton_router.http.calls import Call
from baton_router.http.debug.request_views import details_of, summary_of
from baton_router.http.debug.schemas import RequestList
from baton_router.metrics.router_metrics import RouterMetrics
from baton_router.process.generation_service import GenerationService


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Asks the processes of a router for their latest requests, or for one."""

    tenant: str | None
    """Only the requests of this tenant; None is all."""
    limit: int = 0
    name: str = ""
    """Name of the one request; empty asks for the latest."""


def answer_process(question: bytes, service: GenerationService, metrics: RouterMetrics) -> bytes:
    """Answer a process of this router: its metrics, a `RequestList`, or `RequestDetails`; empty for none."""
    if question == METRICS:
        return metrics.exposition(is_ready=service.is_ready).text()
    asked = msgspec.json.decode(question, type=Question)
    log, now = service.router.core.log, asyncio.get_running_loop().time()
    if not asked.name:
        seen = (record for record in log.recent() if _is_seen(record, asked.tenant))
        latest = [summary_of(now, record, metrics) for record in islice(seen, asked.limit)]
        return msgspec.json.encode(RequestList(requests=latest))
    record = log.get(asked.name)
    if record is None or not _is_seen(record, asked.tenant):
        return b""
    return msgspec.json.encode(details_of(now, record))


async def ask_processes(call: Call[None], question: Question) -> list[bytes]:
    """Return the answers of all processes of this router that have one."""
    text, state = msgspec.json.encode(question), call.state
    if state.ask_processes is not None:
        return list((await state.ask_processes(text)).values())
    page = answer_process(text, state.service, state.metrics)
    return [page] if page else []


def _is_seen(record: RequestRecord, tenant: str | None) -> bool:
    return tenant is None or record.context.tenant == tenant
