"""Listening Unix sockets: a path that a server left behind is taken over."""

from __future__ import annotations

import errno
import os
import socket
import stat


def listen_at_path(path: str) -> socket.socket:
    """Return a socket that listens at a path; a socket that nobody serves any more is replaced.

    Raises:
        OSError: the path cannot be bound; `strerror` is the reason for people.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_abandoned(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def _is_abandoned(path: str) -> bool:
    """True if a path is a socket that refuses connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(path) == errno.ECONNREFUSED and stat.S_ISSOCK(os.stat(path).st_mode)
