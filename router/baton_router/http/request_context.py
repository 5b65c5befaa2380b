"""What an HTTP call tells of its requests besides their tokens: whose they are, how fast they have to be."""

from __future__ import annotations

import math
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.request_context import RequestContext, Slo
from baton_router.http.calls import Call
from baton_router.session_ids import checked_session_id
from baton_router.trace_context import HEADER, read_traceparent

SESSION_HEADER: Final = "x-session-id"
TTFT_HEADER: Final = "x-slo-ttft-ms"
TPOT_HEADER: Final = "x-slo-tpot-ms"


def read_context(call: Call[Any], session_id: str | None, prompt_cache_key: str | None) -> RequestContext:
    """Read a call's headers. The session is `session_id`, else what its header says, else `prompt_cache_key`.

    Raises:
        InvalidRequestError: a value is too long, or no number; the message names the field or header.
    """
    headers = call.request.headers
    named = {
        "session_id": session_id,
        SESSION_HEADER: headers.get(SESSION_HEADER),
        "prompt_cache_key": prompt_cache_key,
    }
    sessions = [checked_session_id(field, name) for field, name in named.items() if name]
    return RequestContext(
        tenant=call.tenant,
        session_id=sessions[0] if sessions else "",
        slo=Slo(ttft_s=_read_s(call, TTFT_HEADER), tpot_s=_read_s(call, TPOT_HEADER)),
        traceparent=read_traceparent(headers.get(HEADER, "")),
        arrived_s=call.arrived_s,
    )


def _read_s(call: Call[Any], header: str) -> float | None:
    """A header of milliseconds, in seconds."""
    text = call.request.headers.get(header)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf):
        raise InvalidRequestError(header, text, "milliseconds, over 0")
    return value / 1e3
