"""The ways in which APIs write errors and the events of streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from baton_router.http.errors import ErrorBody, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The way of one API."""

    error: type
    """The type of the body of an error."""
    error_body: Callable[[Failure, str], msgspec.Struct]
    """Returns the body of an error, given the name of its call."""
    names_events: bool
    """True if each event of a stream has a line with its type: the tag of its struct, error without one."""
    last_event: bytes
    """Follows the last event of a stream."""
    request_id_header: str = ""
    """Header in which the clients look for a call's name; empty: `x-request-id`, which all replies have."""

    def head(self, event: msgspec.Struct) -> bytes:
        """Return what comes before the data of an event."""
        if not self.names_events:
            return b""
        return b"event: %b\n" % str(type(event).__struct_config__.tag or "error").encode()


OPENAI: Final = Dialect(
    error=ErrorBody,
    error_body=lambda failure, _: failure.body,
    names_events=False,
    last_event=b"data: [DONE]\n\n",
)
