"""The producer's end of the peer channel: one ROUTER socket that every consumer of this worker talks to.

Used on the worker's loop. Messages may be lost; the transfer's renewals make up for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from baton_core.errors import InvalidConfigError
from baton_core.sessions.peer_messages import (
    Confirm,
    LeaseRenew,
    Release,
    Subscribe,
    ToConsumer,
    ToProducer,
    decode_peer,
    encode_peer,
)
from baton_kv.curve import CurveKeys, protect
from baton_kv.peer_socket import open_socket, send_frames

HANDSHAKE_MS: Final = 5_000
"""Within which a connection has to show that it speaks the protocol, or it is hung up on."""
_log = logging.getLogger(__name__)


class ProducerEndpoint:
    """Binds `address` (`tcp://host:port`, IPv6 in brackets, port 0 for any) when made.

    With `curve` all is encrypted, and only consumers that know its public key are heard.

    Raises:
        InvalidConfigError: the address cannot be bound.
    """

    def __init__(self, context: zmq.asyncio.Context, address: str, curve: CurveKeys | None = None) -> None:
        self._socket = open_socket(context, zmq.ROUTER, address)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        # A consumer that has lost its connection comes again under its name before the end is seen here.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        protect(self._socket, curve)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._socket.close()
            raise InvalidConfigError(
                f"--peer-address is {address!r}, which cannot be bound ({error.strerror}); "
                "allowed: tcp://host:port with an address of this machine and a port that is not in use"
            ) from None
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def receive(self, on_message: Callable[[bytes, ToProducer], None]) -> None:
        """Hand each message to `on_message`, with the consumer's name for answers, until cancelled."""
        while True:
            frames = await self._socket.recv_multipart()
            message = _decode(frames)
            if message is not None:
                try:
                    on_message(frames[0], message)
                except Exception as error:
                    _log.error("a consumer's %s failed", type(message).__name__, exc_info=error)

    def send(self, peer_id: bytes, message: ToConsumer) -> None:
        """Send without waiting; a message that finds no room or no peer is lost."""
        send_frames(self._socket, peer_id, encode_peer(message))

    def close(self) -> None:
        self._socket.close()


def _decode(frames: list[bytes]) -> ToProducer | None:
    try:
        message = decode_peer(frames[1])
    except (IndexError, msgspec.MsgspecError) as error:
        _log.warning("dropped a malformed message on the peer channel: %.200r", error)
        return None
    if isinstance(message, Subscribe | LeaseRenew | Confirm | Release):
        return message
    _log.warning("dropped a %s on the peer channel: only a producer sends it", type(message).__name__)
    return None
