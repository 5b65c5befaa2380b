"""The TCP transport where it is encrypted, by ZMQ's CURVE. Its messages are copied at both ends.

A chunk is gathered into reused memory and sent from there; ZMQ never writes to a pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import zmq
from zmq.utils.monitor import parse_monitor_message

from baton_kv.pool_bytes import PoolBytes
from baton_kv.staging import Staging
from baton_kv.tcp_connections import MAX_MESSAGES, File
from baton_kv.tcp_messages import (
    ChunkSent,
    ToConsumer,
    ToProducer,
    decode_to_consumer,
    decode_to_producer,
    encode,
)
from baton_kv.tcp_socket import CONNECTION_LOST, TcpTimings, close, connect, listen
from baton_kv.tcp_stream import Place
from baton_kv.transport import Listen

_log = logging.getLogger(__name__)


class EncryptedProducerConnection:
    """Begins to connect to `address`, which carries the producer's key.

    Raises:
        ZMQError: that is no endpoint.
        ValueError: the key in the address is none.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, timings: TcpTimings) -> None:
        self._socket, self._monitor = connect(context, address, timings)
        self.is_connected = False

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        return (self._socket, zmq.POLLIN), (self._monitor, zmq.POLLIN)

    def send(self, message: ToProducer) -> None:
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return

    def receive(self, place: Place[ToConsumer]) -> ToConsumer | None:
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self._require_connection()
            return None
        message = decode_to_consumer(frames[0].buffer)
        payload = b"" if len(frames) == 1 else frames[1].buffer
        if len(frames) > 2:
            raise ValueError(f"a message has {len(frames)} frames; allowed: 2")
        start = 0
        for target in place(message, len(payload)):
            target[:] = payload[start : start + len(target)]
            start += len(target)
        return message

    def discard(self) -> None:
        """Payloads arrive whole, so there is nothing to discard."""

    def close(self) -> None:
        close(self._socket, self._monitor)

    def _require_connection(self) -> None:
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if event & CONNECTION_LOST:
                raise ConnectionResetError("the connection has ended, or could not be made")
            self.is_connected = True


class EncryptedConsumerConnections:
    """One ROUTER socket for all consumers.

    `on_return` is called, on any thread, when `can_take` may have changed. Chunks on their way out are
    bounded by consumer and over all, and each frame that comes in is bounded in size. The number of frames of
    one message is not: ZMQ keeps them until the last one has come, or the connection ends.

    Raises:
        InvalidConfigError: the address is not this machine's, or taken.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        where: Listen,
        timings: TcpTimings,
        pool: PoolBytes,
        on_return: Callable[[], None],
    ) -> None:
        self._socket, self.address = listen(context, where, timings, len(pool))
        self.staging = Staging(pool.make_buffer, on_return)

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        return ((self._socket, zmq.POLLIN),)

    def receive(self) -> Iterator[tuple[bytes, ToProducer | None]]:
        for _ in range(MAX_MESSAGES):
            try:
                consumer_id, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                (frame,) = frames
                message = decode_to_producer(frame)
            except (ValueError, msgspec.MsgspecError) as error:
                _log.warning("dropped a malformed message of a consumer: %.200r", error)
            else:
                yield consumer_id, message

    def can_take(self, consumer_id: bytes) -> bool:
        return self.staging.can_lend(consumer_id)

    def send(self, consumer_id: bytes, message: ToConsumer) -> bool:
        return self._send(consumer_id, encode(message))

    def send_chunk(
        self,
        consumer_id: bytes,
        message: ChunkSent,
        blocks: PoolBytes,
        block_ids: Sequence[int],
        columns: slice,
    ) -> bool:
        shape = len(block_ids), columns.stop - columns.start
        payload = self.staging.lend(consumer_id, shape[0] * shape[1])
        blocks.read(block_ids, columns, np.frombuffer(payload, np.uint8).reshape(shape))
        return self._send(consumer_id, encode(message), payload)

    def close(self) -> None:
        self._socket.close(linger=0)

    def _send(self, consumer_id: bytes, *frames: bytes | memoryview) -> bool:
        """Send without waiting; a message to a consumer that does not read may be lost."""
        try:
            self._socket.send_multipart([consumer_id, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            _log.debug("a consumer does not read what it has asked for")
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True
