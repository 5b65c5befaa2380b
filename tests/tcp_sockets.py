"""The TCP sockets that this process has, whichever library made them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def tcp_connections() -> Iterator[list[socket.socket]]:
    """Duplicates of every connected TCP socket of this process, to look at."""
    with ExitStack() as stack:
        yield [stack.enter_context(found) for found in _sockets() if _is_connected_tcp(found)]


def sends_at_once(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def _sockets() -> Iterator[socket.socket]:
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if str(entry.readlink()).startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue  # closed meanwhile


def _is_connected_tcp(found: socket.socket) -> bool:
    is_tcp = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
    try:
        found.getpeername()
    except OSError:
        is_tcp = False
    if not is_tcp:
        found.close()
    return is_tcp
