"""The consumer's end of the peer channel: one DEALER socket to each producer.

Used on the worker's loop. Messages may be lost; the transfer's renewals make up for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from baton_core.sessions.peer_messages import (
    BlocksReady,
    Confirmed,
    LeaseGone,
    ToConsumer,
    ToProducer,
    decode_peer,
    encode_peer,
)
from baton_kv.curve import prepare_dial, without_key
from baton_kv.peer_socket import open_socket, send_frames

MAX_PRODUCERS: Final = 960
"""Sockets kept open; the one used longest ago is closed for a new one. A ZMQ context has 1023 in all."""
MAX_RECONNECT_MS: Final = 2_000
"""Between two attempts to reach a producer; the first ones follow each other faster."""
_MAX_NAME_BYTES: Final = 255
"""Bytes of a name that ZMQ takes: the last ones, which say when the worker was started."""
IDLE_S: Final = 300.0
"""A socket over which nothing was sent for so long is closed when the next one is opened."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Producer:
    socket: zmq.asyncio.Socket
    reader: asyncio.Task[None]
    used_at: float = 0.0


class ConsumerEndpoint:
    """Speaks to producers as `name`, which must differ for every start of a worker."""

    def __init__(
        self, context: zmq.asyncio.Context, name: str, on_message: Callable[[ToConsumer], None]
    ) -> None:
        self._context = context
        self._name = name.encode()[-_MAX_NAME_BYTES:]
        self._on_message = on_message
        self._producers: OrderedDict[str, _Producer] = OrderedDict()

    def send(self, address: str, message: ToProducer) -> None:
        """Send without waiting to the producer that listens at `address`.

        The message is lost where there is no room, and where that is no address. Where the address carries a
        key, all is encrypted.
        """
        now = time.monotonic()
        if address not in self._producers:
            self._shut_unused(address, now)
            try:
                self._open(address)
            except (zmq.ZMQError, ValueError) as error:
                what = type(message).__name__
                _log.warning("lost a %s: no way to a producer at %.200r (%s)", what, address, error)
                return
        self._producers.move_to_end(address)
        producer = self._producers[address]
        producer.used_at = now
        send_frames(producer.socket, encode_peer(message))

    @property
    def addresses(self) -> list[str]:
        """Producers to which there is a socket; the one used longest ago comes first."""
        return list(self._producers)

    async def close(self) -> None:
        """Close every socket and wait for their readers."""
        readers = [self._shut(address) for address in self.addresses]
        await asyncio.gather(*readers, return_exceptions=True)

    def _open(self, address: str) -> None:
        if len(self._producers) >= MAX_PRODUCERS:
            self._shut(next(iter(self._producers)))
        socket = open_socket(self._context, zmq.DEALER, address)
        try:
            socket.setsockopt(zmq.IDENTITY, self._name)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, MAX_RECONNECT_MS)
            socket.connect(prepare_dial(socket, address))
        except BaseException:
            socket.close()
            raise
        self._producers[address] = _Producer(socket, asyncio.create_task(self._receive(socket)))

    def _shut_unused(self, new_address: str, now: float) -> None:
        """Shut what has not been used for long, or leads where another producer listens now."""
        for address, producer in list(self._producers.items()):
            is_replaced = without_key(address) == without_key(new_address)
            if is_replaced or producer.used_at <= now - IDLE_S:
                self._shut(address)

    def _shut(self, address: str) -> asyncio.Task[None]:
        producer = self._producers.pop(address)
        producer.reader.cancel()
        producer.socket.close()
        return producer.reader

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            message = _decode(await socket.recv())
            if message is not None:
                try:
                    self._on_message(message)
                except Exception as error:
                    _log.error("a producer's %s failed", type(message).__name__, exc_info=error)


def _decode(frame: bytes) -> ToConsumer | None:
    try:
        message = decode_peer(frame)
    except msgspec.MsgspecError as error:
        _log.warning("dropped a malformed message on the peer channel: %.200r", error)
        return None
    if isinstance(message, BlocksReady | Confirmed | LeaseGone):
        return message
    _log.warning("dropped a %s on the peer channel: only a consumer sends it", type(message).__name__)
    return None
