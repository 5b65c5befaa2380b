"""Heartbeats of ZMQ connections: an end that has gone silent is given up, and a new connection made."""

from __future__ import annotations

from typing import Any, Final

import zmq

INTERVAL_MS: Final = 2_000
TIMEOUT_MS: Final = 4_000
"""Without an answer for so long a connection is lost. With the interval it is less than a transfer waits."""


def send_heartbeats(socket: zmq.Socket[Any]) -> None:
    """Send heartbeats over connections of `socket`. Call it before it binds or connects."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, INTERVAL_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
