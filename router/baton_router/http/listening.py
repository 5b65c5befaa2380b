"""Sockets that listen."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

from baton_core.errors import InvalidConfigError

_BACKLOG: Final = 2048


def listen(host: str, port: int) -> list[socket.socket]:
    """Listen at every address of `host`, all with one port; port 0 chooses it.

    Raises:
        InvalidConfigError: an address cannot be bound; the message names the flags and what is allowed.
    """
    with ExitStack() as opened:
        listeners: list[socket.socket] = []
        try:
            for family, address in _addresses(host, port):
                where = (address, listeners[0].getsockname()[1] if listeners else port)
                listener = socket.create_server(
                    where, family=family, backlog=_BACKLOG, dualstack_ipv6=address == "::"
                )
                opened.enter_context(listener)
                listeners.append(listener)
        except (OSError, OverflowError, UnicodeError):
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise InvalidConfigError(
                f"address of --host and --port is {shown!r}, which cannot be bound; "
                "allowed: host:port with an address of this machine and a port that is not in use"
            ) from None
        opened.pop_all()
        return listeners


def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))
