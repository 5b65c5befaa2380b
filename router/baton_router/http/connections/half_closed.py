"""Watches a connection that is not read: its client may wait for its reply, or be gone."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Final

from baton_router.http.connections.transports import abort

_CHECK_EVERY_S: Final = 0.25
_PROBE_AFTER_CHECKS: Final = 2
_KEEPALIVE_S: Final = 5
_TCP_CLOSE: Final = 7
"""State of a socket that was reset, the first byte of Linux's `tcp_info`."""
_TCP_CLOSE_WAIT: Final = 8
"""State of a socket whose peer sends no more."""
_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClosed:
    """Aborts the transport once the client is gone, until `stop`.

    TCP reports the same for a client that closed its socket and for one that only ended its requests. The
    first replies to further bytes with a reset: to those of the response or, where that takes long, of an
    interim response, which clients skip. Otherwise the kernel's probes get a reset after the client's
    `tcp_fin_timeout`, a minute.

    Args:
        can_probe: whether an interim response may be sent now.
    """

    def __init__(self, transport: asyncio.Transport, can_probe: Callable[[], bool]) -> None:
        self._transport = transport
        self._can_probe = can_probe
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._is_unix = self._socket.family is socket.AF_UNIX
        if not self._is_unix:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
        self._num_checks = 0
        self._has_probed = False
        self._timer = self._loop.call_later(_CHECK_EVERY_S, self._check)

    def stop(self) -> None:
        self._timer.cancel()

    def _state(self) -> int:
        if not self._is_unix:
            return self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        poll = select.poll()
        poll.register(self._socket, 0)  # a Unix socket that its peer has closed always reports a hang-up
        return _TCP_CLOSE if poll.poll(0) else 0

    def _check(self) -> None:
        if (state := self._state()) == _TCP_CLOSE:
            abort(self._transport)
            return
        self._num_checks += state == _TCP_CLOSE_WAIT
        if self._num_checks >= _PROBE_AFTER_CHECKS and not self._has_probed and self._can_probe():
            self._has_probed = True
            self._transport.write(_INTERIM)
        self._timer = self._loop.call_later(_CHECK_EVERY_S, self._check)
