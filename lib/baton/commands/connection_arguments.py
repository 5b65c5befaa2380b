"""Flags of how much of the HTTP server one client's connections may take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from baton.commands.flags import Flag
from baton.commands.suffixes import BYTES

if TYPE_CHECKING:
    from baton_router.http.connection_limits import ConnectionLimits

_MAX_INT: Final = 2**31 - 1
_MAX_SECONDS: Final = 10**6


def _seconds(name: str, default: float, text: str) -> Flag:
    return Flag(name, float, default, f"seconds {text}", low=0, high=_MAX_SECONDS, is_low_open=True)


CONNECTION_FLAGS: Final = (
    Flag("--max-connections", int, 8192, "HTTP connections that may be open", low=1, high=_MAX_INT),
    Flag(
        "--max-header-bytes",
        int,
        64 * 2**10,
        "largest headers of an HTTP request",
        low=1024,
        high=_MAX_INT,
        suffixes=BYTES,
    ),
    _seconds("--header-timeout", 20.0, "within which the headers of an HTTP request have to come"),
    _seconds("--idle-timeout", 75.0, "that an HTTP connection may be open between two requests"),
    _seconds("--stall-timeout", 60.0, "that an HTTP client may take nothing of an answer"),
)


def connection_limits(args: argparse.Namespace) -> ConnectionLimits:
    """What these flags say."""
    from baton_router.http.connection_limits import ConnectionLimits

    return ConnectionLimits(
        max_connections=args.max_connections,
        max_header_bytes=args.max_header_bytes,
        header_timeout_s=args.header_timeout,
        idle_timeout_s=args.idle_timeout,
        stall_timeout_s=args.stall_timeout,
    )
