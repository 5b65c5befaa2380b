"""Recent requests: timings, placement decisions and the sources of their prompt tokens.

Who asks sees the requests of its own key; with `--enable-operator-routes` those of all. Each process of a
router shows those of all processes.
"""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from typing import Final

import msgspec

from baton_router.core.flow.request_record import RequestRecord
from baton_router.group.frames import METRICS
from baton_router.http.calls import Call
from baton_router.http.debug.request_views import details_of, summary_of
from baton_router.http.debug.schemas import RequestDetails, RequestList
from baton_router.http.errors import HttpError
from baton_router.http.kept import check_limit
from baton_router.http.operator_routes import Query, read_query
from baton_router.http.route import Routes, Tag
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


@ROUTES.route(
    "/debug/requests",
    "listRequests",
    "The latest requests, in short",
    query=ListQuery,
    reply=RequestList,
    errors=(400,),
)
async def list_requests(call: Call[None]) -> None:
    """Raises InvalidRequestError: a limit is out of range."""
    limit = read_query(call, ListQuery).limit
    check_limit(limit, MAX_LISTED)
    pages = await ask_processes(call, Question(tenant=_visible_tenant(call), limit=limit))
    found = [one for page in pages for one in msgspec.json.decode(page, type=RequestList).requests]
    found.sort(key=lambda one: one.age_s)
    await call.reply(RequestList(requests=found[:limit]))


@ROUTES.route(
    "/debug/requests/{request_id:path}",
    "retrieveRequest",
    "Where a request's time went, why it ran where it did, and where its prompt came from",
    reply=RequestDetails,
    errors=(404,),
)
async def show_request(call: Call[None]) -> None:
    """Raises HttpError: 404, it is not known, or not this key's."""
    name, tenant = call.request.path_params["request_id"], _visible_tenant(call)
    names = [name, *(name.removeprefix(prefix) for prefix in _ID_PREFIXES if name.startswith(prefix))]
    if (response := _OF_RESPONSE.fullmatch(name)) is not None:
        names.append(response[1])
    allowed = "the id of one of this key's latest requests at this router"
    for one in names:
        for page in await ask_processes(call, Question(tenant=tenant, name=one)):
            await call.reply(msgspec.json.decode(page, type=RequestDetails))
            return
        if await ask_processes(call, Question(tenant=tenant, name=f"{one}-0")):
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
