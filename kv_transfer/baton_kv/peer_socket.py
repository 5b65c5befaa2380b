"""ZMQ sockets of the peer channel, as both of its ends have them.

An end that has gone silent is given up, and a new connection made. Messages may be lost.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import zmq
import zmq.asyncio

MAX_QUEUED_MESSAGES: Final = 10_000
"""Per peer; beyond it messages are dropped."""
MAX_MESSAGE_BYTES: Final = 2**20
INTERVAL_MS: Final = 2_000
TIMEOUT_MS: Final = 4_000
"""Without an answer for so long a connection is lost. With the interval it is less than a transfer waits."""
_log = logging.getLogger(__name__)


def open_socket(context: zmq.asyncio.Context, kind: int, address: str) -> zmq.asyncio.Socket:
    """Return a socket with limits and heartbeats, to be bound or connected to `address`."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, address.startswith("tcp://["))
    socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, INTERVAL_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
    return socket


def send_frames(socket: zmq.asyncio.Socket, *frames: bytes) -> None:
    """Send without waiting; a message that finds no room or no peer is lost."""
    sending = socket.send_multipart(frames, flags=zmq.NOBLOCK)
    asyncio.ensure_future(sending).add_done_callback(_drop_error)


def _drop_error(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and isinstance(future.exception(), zmq.ZMQError):
        _log.debug("lost a message to a peer: %s", future.exception())
