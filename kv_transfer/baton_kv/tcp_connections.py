"""The connections that both ends of the TCP transport need, be they plain or encrypted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import zmq

from baton_kv.pool_bytes import PoolBytes
from baton_kv.tcp_messages import ChunkSent, ToConsumer, ToProducer
from baton_kv.tcp_stream import Place

File = int | zmq.Socket[bytes]
MAX_MESSAGES = 64
"""Taken in one step."""


class ProducerConnection(Protocol):
    """A consumer's connection to one producer, which is never mended."""

    @property
    def is_connected(self) -> bool:
        """True if the producer has been reached."""

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        """The files to wait for, each with its events as `zmq.Poller` takes them."""

    def send(self, message: ToProducer) -> None:
        """Send without waiting; what is lost is missed by deadlines."""

    def receive(self, place: Place[ToConsumer]) -> ToConsumer | None:
        """Return what has come next, once its payload lies where `place` says; None until more comes.

        Raises:
            OSError: the connection has ended, or could not be made.
            ValueError, MsgspecError: the producer breaks the rules.
        """

    def discard(self) -> None:
        """Throw away the rest of a payload that is arriving."""

    def close(self) -> None: ...


class ConsumerConnections(Protocol):
    """A producer's connections to its consumers, each known by a name that is never used twice."""

    address: str
    """The address that consumers connect to."""

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        """As those of a `ProducerConnection`."""

    def receive(self) -> Iterator[tuple[bytes, ToProducer | None]]:
        """Take some of what consumers say; None from one that is gone."""

    def can_take(self, consumer_id: bytes) -> bool:
        """True if there is room for a chunk."""

    def send(self, consumer_id: bytes, message: ToConsumer) -> bool:
        """Send without waiting; False where the consumer is gone."""

    def send_chunk(
        self,
        consumer_id: bytes,
        message: ChunkSent,
        blocks: PoolBytes,
        block_ids: Sequence[int],
        columns: slice,
    ) -> bool:
        """Send the same bytes of some of `blocks`; as `send`. Needs `can_take`."""

    def close(self) -> None: ...
