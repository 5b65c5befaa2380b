"""Sockets that listen."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from baton_core.errors import InvalidConfigError
from baton_service.tcp import listen_at


def listen(host: str, port: int) -> list[socket.socket]:
    """Listen at every address of `host`, all with one port; port 0 chooses it.

    Raises:
        InvalidConfigError: an address cannot be bound; the message names the flags and what is allowed.
    """
    with ExitStack() as opened:
        listeners: list[socket.socket] = []
        try:
            for address in _addresses(host, port):
                listener = listen_at(address, listeners[0].getsockname()[1] if listeners else port)
                opened.enter_context(listener)
                listeners.append(listener)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "that is not a host name"
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise InvalidConfigError(
                f"address of --host and --port is {shown!r}, which cannot be bound ({reason}); "
                "allowed: host:port with an address of this machine and a port that is not in use"
            ) from None
        opened.pop_all()
        return listeners


def _addresses(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
