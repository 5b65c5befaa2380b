"""What both ends of the TCP transport need of a connection, be it plain or encrypted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import zmq

from baton_kv.tcp_messages import ChunkSent, ToHolder, ToPuller
from baton_kv.tcp_stream import Place

File = int | zmq.Socket[bytes]
MAX_MESSAGES = 64
"""Taken in one step."""


class HolderWire(Protocol):
    """A puller's connection to one holder, which is never mended."""

    @property
    def is_connected(self) -> bool:
        """Whether the holder has been reached."""

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        """What to wait for, each with its events as `zmq.Poller` takes them."""

    def send(self, message: ToHolder) -> None:
        """Send without waiting; what is lost is missed by deadlines."""

    def receive(self, place: Place[ToPuller]) -> ToPuller | None:
        """Return what has come next, once its payload lies where `place` says; None until more comes.

        Raises:
            OSError: the connection has ended, or could not be made.
            ValueError, MsgspecError: the holder breaks the rules.
        """

    def discard(self) -> None:
        """Throw away the rest of a payload that is arriving."""

    def close(self) -> None: ...


class PullerWires(Protocol):
    """A holder's connections to its pullers, each known by a name that is never used twice."""

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        """As those of a `HolderWire`."""

    def receive(self) -> Iterator[tuple[bytes, ToHolder | None]]:
        """Take some of what pullers say; None from one that is gone."""

    def can_take(self, puller_id: bytes) -> bool:
        """Whether there is room for a chunk."""

    def send(self, puller_id: bytes, message: ToPuller) -> bool:
        """Send without waiting; False where the puller is gone."""

    def send_chunk(
        self, puller_id: bytes, message: ChunkSent, block_ids: Sequence[int], columns: slice
    ) -> bool:
        """Send the same bytes of some blocks; as `send`. Needs `can_take`."""

    def close(self) -> None: ...
