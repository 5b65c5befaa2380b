"""Transports that may have been closed twice, as by a timer and at the stop.

Those of TLS in asyncio then forget their protocol, and raise AttributeError; they end by themselves.
"""

from __future__ import annotations

from asyncio import Transport
from contextlib import suppress


def abort(transport: Transport) -> None:
    """Close a connection at once; what waits to be sent is lost."""
    with suppress(AttributeError):
        transport.abort()


def num_unsent(transport: Transport) -> int:
    """Return the bytes that wait to be sent."""
    with suppress(AttributeError):
        return transport.get_write_buffer_size()
    return 0
