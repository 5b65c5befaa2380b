"""Reads the context of an HTTP call: session, SLO, trace, and the resumption of a broken stream."""

from __future__ import annotations

import math
import time
from typing import Any, Final, Protocol

from starlette.datastructures import Headers

from baton_core.errors import InvalidRequestError
from baton_core.requests.request_context import NamedWorkers, RequestContext, Slo
from baton_router.http.calls import Call
from baton_router.requests.generation import Resumption
from baton_router.requests.resumption import read_resumption
from baton_router.requests.validation import (
    DATA_PARALLEL_KEY,
    TRACEPARENT,
    checked_session_id,
    read_data_parallel_rank,
    read_traceparent,
)

SESSION_HEADER: Final = "x-session-id"
TTFT_HEADER: Final = "x-slo-ttft-ms"
TPOT_HEADER: Final = "x-slo-tpot-ms"
PREFILL_HEADER: Final = "x-baton-prefill-worker"
DECODE_HEADER: Final = "x-baton-decode-worker"
"""Both name the workers that an endpoint picker has chosen for a request."""


def read_context(call: Call[Any], session_id: str | None, prompt_cache_key: str | None) -> RequestContext:
    """Read a call's headers. The session is `session_id`, else that of its header, else `prompt_cache_key`.

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
        data_parallel_rank=read_data_parallel_rank(
            headers.get(DATA_PARALLEL_KEY), call.state.service.data_parallel_size
        ),
        named=_read_named(headers),
        slo=Slo(ttft_s=_read_s(call, TTFT_HEADER), tpot_s=_read_s(call, TPOT_HEADER)),
        traceparent=read_traceparent(headers.get(TRACEPARENT, "")),
        arrived_s=call.arrived_s,
        is_batch_line=call.is_batch_line,
    )


def _read_named(headers: Headers) -> NamedWorkers | None:
    prefill, decode = headers.get(PREFILL_HEADER), headers.get(DECODE_HEADER)
    return NamedWorkers(prefill=prefill, decode=decode) if prefill and decode else None


def _read_s(call: Call[Any], header: str) -> float | None:
    """Return a header of milliseconds in seconds."""
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


class ResumeFields(Protocol):
    """Fields of a request that resume a broken stream."""

    @property
    def stream(self) -> bool | None: ...
    @property
    def request_id(self) -> str | None: ...
    @property
    def resume_token(self) -> str | None: ...
    @property
    def num_received_tokens(self) -> int | list[int] | None: ...


def read_resuming(call: Call[Any], fields: ResumeFields, num_prompts: int = 1) -> Resumption | None:
    """Return what the client already has, and give the call its former name; None for a new request.

    Raises:
        InvalidRequestError: a field does not go with the others, or the token is none; the message names it.
    """
    counts = fields.num_received_tokens
    given = [counts] if isinstance(counts, int) else counts or []
    resumption = read_resumption(fields.resume_token or "", given)
    if resumption is None:
        return None
    if num_prompts > 1:
        allowed = "beside one prompt: each has a token of its own"
        raise InvalidRequestError("resume_token", f"beside {num_prompts} prompts", allowed)
    if any(given) and not fields.stream:
        allowed = "zeros, unless stream is true: other answers are whole"
        raise InvalidRequestError("num_received_tokens", counts, allowed)
    if fields.request_id is None:
        name = call.state.service.resume_tokens.read(resumption.token, time.time()).request_id
        call.name.adopt(name if name.isascii() else None)
    return resumption
