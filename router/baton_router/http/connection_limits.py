"""How much of an HTTP server one connection may take, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass

from baton_core.errors import InvalidConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Settings of one router.

    Raises:
        InvalidConfigError: a value is out of range; the message names flag, value and what is allowed.
    """

    max_connections: int = 8192
    """One more is hung up on."""
    max_header_bytes: int = 64 * 2**10
    """Of a request's line and headers together."""
    header_timeout_s: float = 20.0
    """From the first byte of a request, or the start of its connection, to the end of its headers."""
    idle_timeout_s: float = 75.0
    """Between two requests. Longer than clients keep idle connections: they know of it when they close."""
    stall_timeout_s: float = 60.0
    """How long a client may take nothing of an answer that waits for it."""

    def __post_init__(self) -> None:
        _check("--max-connections", self.max_connections, self.max_connections >= 1, "1 or more")
        _check("--max-header-bytes", self.max_header_bytes, self.max_header_bytes >= 1024, "1024 or more")
        for flag, seconds in (
            ("--header-timeout", self.header_timeout_s),
            ("--idle-timeout", self.idle_timeout_s),
            ("--stall-timeout", self.stall_timeout_s),
        ):
            _check(flag, seconds, math.isfinite(seconds) and seconds > 0, "seconds, over 0")


def _check(flag: str, value: object, is_allowed: bool, allowed: str) -> None:
    if not is_allowed:
        raise InvalidConfigError(f"{flag} is {value!r}; allowed: {allowed}")
