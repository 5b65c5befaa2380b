"""The timings of the TCP transport, and ZMQ's sockets with their limits for where it is encrypted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import zmq

from baton_kv.curve import OVERHEAD_BYTES, has_key, prepare_dial, protect
from baton_kv.pull_chunks import CHUNK_BYTES
from baton_kv.tcp_messages import MAX_GRANTED, max_frame_bytes
from baton_kv.transport import Listen

_MAX_QUEUED: Final = 64
"""Messages to or from one consumer; at most `MAX_GRANTED` of them are chunks."""


CONNECTION_LOST: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpTimings:
    """Times that each end waits for the other."""

    heartbeat_s: float = 0.5
    lost_s: float = 2.0
    """Without an answer to a heartbeat the connection is lost. Plain connections count in whole seconds."""
    silence_s: float = 5.0
    """A consumer gives up a producer that is connected but sends none of the chunks it may send; below the
    deadline that the core has for a whole copy."""
    idle_s: float = 30.0
    """A producer gives up a fetch whose consumer takes nothing."""


def listen(
    context: zmq.Context[zmq.Socket[bytes]], where: Listen, timings: TcpTimings, num_blocks: int
) -> tuple[zmq.Socket[bytes], str]:
    """Open the socket of a producer of `num_blocks`; return it and the address that consumers connect to.

    Raises:
        InvalidConfigError: the address is not this machine's, or taken.
    """
    socket = _open(context, zmq.ROUTER, where.endpoint, timings)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.SNDHWM, _MAX_QUEUED)
    socket.setsockopt(zmq.RCVHWM, _MAX_QUEUED)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes(num_blocks))
    protect(socket, where.curve)
    try:
        socket.bind(where.endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise where.refusal(error.strerror) from None
    advertised = where.advertised(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    return socket, where.curve.address(advertised) if where.curve else advertised


def connect(
    context: zmq.Context[zmq.Socket[bytes]], address: str, timings: TcpTimings
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Open a consumer's socket and begin to connect; return it and the one that tells of its connection.

    Raises:
        ZMQError: that is no endpoint.
        ValueError: the key in the address is none.
    """
    socket = _open(context, zmq.DEALER, address, timings)
    socket.setsockopt(zmq.RCVHWM, 2 * MAX_GRANTED)
    socket.setsockopt(zmq.MAXMSGSIZE, CHUNK_BYTES + (OVERHEAD_BYTES if has_key(address) else 0))
    monitor: zmq.Socket[bytes] = socket.get_monitor_socket(CONNECTION_LOST | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    try:
        socket.connect(prepare_dial(socket, address))
    except (zmq.ZMQError, ValueError):
        close(socket, monitor)
        raise
    return socket, monitor


def close(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    """Close what `connect` opened."""
    socket.disable_monitor()
    monitor.close(linger=0)
    socket.close(linger=0)


def _open(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str, timings: TcpTimings
) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    for option, value in (
        (zmq.IPV6, endpoint.startswith("tcp://[")),  # of an IPv4 address it would make another one
        (zmq.LINGER, 0),
        (zmq.SNDBUF, CHUNK_BYTES),
        (zmq.RCVBUF, CHUNK_BYTES),
        (zmq.HEARTBEAT_IVL, round(1000 * timings.heartbeat_s)),
        (zmq.HEARTBEAT_TIMEOUT, round(1000 * timings.lost_s)),
        (zmq.HANDSHAKE_IVL, round(1000 * timings.silence_s)),
        (zmq.CONNECT_TIMEOUT, round(1000 * timings.silence_s)),
        (zmq.TCP_MAXRT, round(1000 * timings.silence_s)),  # a frozen peer's closed window, too
        (zmq.RECONNECT_IVL, -1),
    ):
        socket.setsockopt(option, value)
    return socket
