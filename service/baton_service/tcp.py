"""TCP sockets that send what is written at once.

Nagle's algorithm holds a small write back until the one before it is acknowledged, which the other end of a
connection in use delays by 40 ms: the first token of a stream would wait behind its headers.
"""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Final

_BACKLOG: Final = 2048
"""Connections that may wait to be accepted."""


def listen_at(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a socket that listens at an address, which for `::` includes IPv4; port 0 takes any.

    Linux gives its TCP_NODELAY to the connections that it accepts. asyncio would leave that off: it sets the
    option for sockets whose protocol number is IPPROTO_TCP, and that of this one is 0.

    Args:
        is_shared: other processes of this user may listen there too; the system deals connections out.

    Raises:
        OSError: the address cannot be bound; `strerror` is the reason for people.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
        if family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        _bind(listener, host, port)
        listener.listen(_BACKLOG)
        opened.pop_all()
        return _sending_at_once(listener)


def connect_to(address: tuple[str, int], timeout_s: float) -> socket.socket:
    """Return a blocking socket that is connected to `address`.

    Raises:
        OSError: it is not within `timeout_s`, which also bounds each later call.
    """
    return _sending_at_once(socket.create_connection(address, timeout_s))


def _bind(listener: socket.socket, host: str, port: int) -> None:
    try:
        listener.bind((host, port))
    except OverflowError:
        raise OSError(errno.EINVAL, "a port is from 0 to 65535") from None
    except (TypeError, ValueError):  # it has a null character, or cannot be put into IDNA
        raise OSError(errno.EINVAL, "that is not a host name") from None


def _sending_at_once(opened: socket.socket) -> socket.socket:
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened
