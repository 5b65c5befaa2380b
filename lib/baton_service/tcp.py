"""TCP sockets that send what is written at once.

Nagle's algorithm holds a small write back until the one before it is acknowledged, which the other end of a
connection in use delays by 40 ms: the first token of a stream would wait behind its headers.
"""

from __future__ import annotations

import socket
from typing import Final

_BACKLOG: Final = 2048
"""Connections that may wait to be accepted."""


def listen_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address, which for `::` hears IPv4, too; port 0 takes any.

    Linux gives its TCP_NODELAY to the connections that it accepts. asyncio would leave that off: it sets the
    option for sockets whose protocol number is IPPROTO_TCP, and those of `socket.create_server` have 0.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server(
        (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=host == "::"
    )
    return _sending_at_once(listener)


def connect_to(address: tuple[str, int], timeout_s: float) -> socket.socket:
    """Return a blocking socket that is connected to `address`.

    Raises:
        OSError: it is not within `timeout_s`, which also bounds each later call.
    """
    return _sending_at_once(socket.create_connection(address, timeout_s))


def _sending_at_once(opened: socket.socket) -> socket.socket:
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened
