"""Recent requests: timings, placement decisions and the sources of their prompt tokens.

Who asks sees the requests of its own key; with `--enable-operator-routes` those of all. Each process of a
router shows those of all processes.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from baton_router.http.calls import Call
from baton_router.http.debug.processes import Question, ask_processes
from baton_router.http.debug.schemas import RequestDetails, RequestList
from baton_router.http.errors import HttpError
from baton_router.http.kept import check_limit
from baton_router.http.operator_routes import Query, read_query
from baton_router.http.route import Routes, Tag

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
