"""The TCP transport where nothing is encrypted: blocks go from pool to pool, with no copy but the kernel's.

A host that is lost shows by TCP's keepalive and by what it does not acknowledge; one that is frozen does not,
and is given up by the deadlines of the link.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Final

import msgspec
import zmq

from baton_kv.pool_bytes import PoolBytes
from baton_kv.tcp_connections import MAX_MESSAGES, File
from baton_kv.tcp_messages import (
    ChunkSent,
    ToConsumer,
    ToProducer,
    decode_to_consumer,
    decode_to_producer,
    encode,
    max_frame_bytes,
)
from baton_kv.tcp_socket import TcpTimings
from baton_kv.tcp_stream import FrameStream, Place
from baton_kv.transport import Listen

MAX_PORT: Final = 65535
MAX_CONSUMERS: Final = 256
"""Connected at a time; one more displaces the oldest that has fetched nothing yet, or is turned away."""
_MAX_TO_CONSUMER: Final = 4096
_MAX_UNSENT: Final = 1024
"""Pieces that a consumer may not have read, chunks aside; then it is hung up on."""
_MAX_EVENTS: Final = 64
_log = logging.getLogger(__name__)


class PlainProducerConnection:
    """Begins to connect to `endpoint`, `tcp://host:port`.

    Raises:
        OSError: the host has no address.
        ValueError: that is no endpoint.
    """

    def __init__(self, endpoint: str, timings: TcpTimings) -> None:
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        if not 0 < int(port) <= MAX_PORT:
            raise ValueError(f"port is {port}; allowed: 1 to {MAX_PORT}")
        connection, address = _socket_for(host, int(port))
        _configure(connection, timings)
        self._stream: FrameStream[ToConsumer] = FrameStream(
            connection, decode_to_consumer, max_message_bytes=_MAX_TO_CONSUMER
        )
        self._connection = connection
        connection.connect_ex(address)  # what is wrong with it shows when it is read
        self.is_connected = False

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        return ((self._stream.fileno(), zmq.POLLIN | (zmq.POLLOUT if self._stream.num_unsent else 0)),)

    def send(self, message: ToProducer) -> None:
        try:
            self._stream.send(encode(message))
        except OSError:
            return  # `receive` says so

    def receive(self, place: Place[ToConsumer]) -> ToConsumer | None:
        if self._stream.num_unsent:
            self._stream.flush()
        message = self._stream.receive(place)
        self.is_connected = self.is_connected or _has_peer(self._connection)
        return message

    def discard(self) -> None:
        self._stream.discard()

    def close(self) -> None:
        self._stream.close()


class PlainConsumerConnections:
    """Listens at `where` for those who fetch of `num_blocks`; `address` is what they connect to.

    Raises:
        InvalidConfigError: the address is not this machine's, or taken.
    """

    def __init__(self, where: Listen, timings: TcpTimings, num_blocks: int) -> None:
        self._listener = _listen(where)
        self.address = where.advertised(self._listener.getsockname()[1])
        self._timings = timings
        self._num_blocks = num_blocks
        self._epoll = select.epoll()
        # Each connection is told of once: one for which there is no file would end every wait otherwise.
        self._epoll.register(self._listener, select.EPOLLIN | select.EPOLLET)
        self._streams: dict[bytes, FrameStream[ToProducer]] = {}
        self._names: dict[int, bytes] = {}
        """Names of the consumers, by file."""
        self._strangers: dict[bytes, None] = {}
        """Consumers that no chunk was sent to yet: perhaps strangers, the oldest first."""
        self._numbers = count()

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        return ((self._epoll.fileno(), zmq.POLLIN),)

    def receive(self) -> Iterator[tuple[bytes, ToProducer | None]]:
        for file, _ in self._epoll.poll(0, _MAX_EVENTS):
            if file == self._listener.fileno():
                yield from self._accept()
            else:
                yield from self._receive_from(file)

    def can_take(self, consumer_id: bytes) -> bool:
        return not self._streams[consumer_id].num_unsent

    def send(self, consumer_id: bytes, message: ToConsumer) -> bool:
        return self._send(consumer_id, message)

    def send_chunk(
        self,
        consumer_id: bytes,
        message: ChunkSent,
        blocks: PoolBytes,
        block_ids: Sequence[int],
        columns: slice,
    ) -> bool:
        self._strangers.pop(consumer_id, None)
        return self._send(consumer_id, message, blocks.view(block_ids, columns))

    def close(self) -> None:
        for consumer_id in list(self._streams):
            self._hang_up(consumer_id)
        self._epoll.close()
        self._listener.close()

    def _accept(self) -> Iterator[tuple[bytes, None]]:
        """Take the connections that wait, until there are too many files; yields those that they displace."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError:
                return
            if len(self._streams) >= MAX_CONSUMERS:
                if not self._strangers:
                    connection.close()
                    continue
                yield self._hang_up(next(iter(self._strangers))), None
            self._add(connection)

    def _add(self, connection: socket.socket) -> None:
        _configure(connection, self._timings)
        name = b"%d" % next(self._numbers)
        self._streams[name] = FrameStream(
            connection, decode_to_producer, max_message_bytes=max_frame_bytes(self._num_blocks)
        )
        self._names[connection.fileno()] = name
        self._strangers[name] = None
        self._epoll.register(connection, select.EPOLLIN)

    def _receive_from(self, file: int) -> Iterator[tuple[bytes, ToProducer | None]]:
        if (consumer_id := self._names.get(file)) is None:
            return  # hung up on meanwhile
        stream = self._streams[consumer_id]
        try:
            stream.flush()
            for _ in range(MAX_MESSAGES):
                message = stream.receive(_refuse_payload)
                if message is None:
                    break
                yield consumer_id, message
                if consumer_id not in self._streams:
                    return
        except OSError:
            yield self._hang_up(consumer_id), None
        except (ValueError, msgspec.MsgspecError) as error:
            _log.warning("hung up on a consumer that does not keep to the protocol: %.200r", error)
            yield self._hang_up(consumer_id), None
        else:
            self._watch(stream)

    def _send(self, consumer_id: bytes, message: ToConsumer, payload: Iterable[memoryview] = ()) -> bool:
        stream = self._streams.get(consumer_id)
        if stream is None:
            return False
        try:
            stream.send(encode(message), payload)
        except OSError:
            self._hang_up(consumer_id)
            return False
        if stream.num_unsent > _MAX_UNSENT + stream.num_pieces:
            self._hang_up(consumer_id)
            return False
        self._watch(stream)
        return True

    def _watch(self, stream: FrameStream[ToProducer]) -> None:
        self._epoll.modify(stream, select.EPOLLIN | (select.EPOLLOUT if stream.num_unsent else 0))

    def _hang_up(self, consumer_id: bytes) -> bytes:
        stream = self._streams.pop(consumer_id)
        self._strangers.pop(consumer_id, None)
        del self._names[stream.fileno()]
        stream.close()
        return consumer_id


def _has_peer(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def _refuse_payload(message: ToProducer, num_bytes: int) -> Iterable[memoryview]:
    if num_bytes:
        raise ValueError(f"a message has a payload of {num_bytes} bytes; allowed: none")
    return ()


def _listen(where: Listen) -> socket.socket:
    try:
        listener, address = _socket_for(where.host, where.port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind(address)
            listener.listen(MAX_CONSUMERS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise where.refusal(error.strerror) from None
    return listener


def _socket_for(host: str, port: int) -> tuple[socket.socket, Any]:
    """A socket that does not block, and its host's address; hosts of IPv6 are in brackets."""
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    found = socket.getaddrinfo(host.strip("[]"), port, family, socket.SOCK_STREAM)
    address = found[0][4]
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    return connection, address


def _configure(connection: socket.socket, timings: TcpTimings) -> None:
    interval_s = max(1, round(timings.heartbeat_s))
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, interval_s),
        (socket.TCP_KEEPINTVL, interval_s),
        (socket.TCP_KEEPCNT, max(1, round(timings.lost_s) // interval_s)),
        (socket.TCP_USER_TIMEOUT, round(1000 * timings.silence_s)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
