"""The trace context that a caller of an engine hands over with a request, as headers of HTTP."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Final

from baton_core.errors import InvalidRequestError
from baton_router.requests.validation import TRACEPARENT, read_traceparent

_TRACE_HEADERS: Final = frozenset({TRACEPARENT, "tracestate"})
_log = logging.getLogger(__name__)


def read_trace_headers(headers: Mapping[str, str] | None, *, is_traced: bool) -> str:
    """Return the W3C `traceparent` among a caller's headers; empty without a valid one, or without tracing.

    Raises:
        InvalidRequestError: the headers are no mapping.
    """
    if headers is None:
        return ""
    if not isinstance(headers, Mapping):
        raise InvalidRequestError("trace_headers", headers, "None, or a mapping of headers' names to values")
    given = {name.lower(): value for name, value in headers.items() if isinstance(name, str)}
    if not is_traced:
        if _TRACE_HEADERS & given.keys():
            _warn_ignored()
        return ""
    value = given.get(TRACEPARENT)
    return read_traceparent(value) if isinstance(value, str) else ""


@cache
def _warn_ignored() -> None:
    """Say it once in a process."""
    _log.warning("trace_headers are ignored: nothing is traced without otlp_traces_endpoint")
