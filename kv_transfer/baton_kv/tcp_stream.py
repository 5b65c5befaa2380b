"""A plain TCP connection that carries messages, some followed by bytes which go from memory to memory.

A frame is two sizes, a message and its payload. What is sent is not copied here, and what arrives is written
where the receiver says: nothing lies between the connection and the memory at either end. Nothing blocks.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

T = TypeVar("T")
Place = Callable[[T, int], Iterable[memoryview]]
"""Returns the memory for a message's payload of so many bytes; an empty one discards it.

Raises ValueError for a payload that is not wanted."""
_SIZES: Final = struct.Struct("!II")
_MAX_PIECES: Final = 512
"""Pieces of memory to one system call; Linux allows 1,024."""
_SCRAP_BYTES: Final = 1 << 16


class FrameStream(Generic[T]):
    """One end of a connection; its methods raise OSError when the connection is over.

    A message that is larger than `max_message_bytes` breaks the rules.
    """

    def __init__(
        self, connection: socket.socket, decode: Callable[[bytes | memoryview], T], *, max_message_bytes: int
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._decode = decode
        self._max_message_bytes = max_message_bytes
        self._unsent: deque[memoryview] = deque()
        self.num_pieces = 0
        """Pieces of the last payload that was sent."""
        self._head = bytearray()
        self._message: T | None = None
        """The one whose payload is arriving."""
        self._targets: deque[memoryview] = deque()
        self._num_left = 0

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def num_unsent(self) -> int:
        """Pieces that wait for room."""
        return len(self._unsent)

    def send(self, message: bytes, payload: Iterable[memoryview] = ()) -> None:
        """Send as much as there is room for; the rest, in place until then, by `flush`."""
        pieces = list(payload)
        self.num_pieces = len(pieces) or self.num_pieces
        self._unsent.append(memoryview(_SIZES.pack(len(message), sum(map(len, pieces))) + message))
        self._unsent.extend(pieces)
        self.flush()

    def flush(self) -> None:
        while self._unsent:
            try:
                num_bytes = self._connection.sendmsg(list(islice(self._unsent, _MAX_PIECES)))
            except BlockingIOError:
                return
            _advance(self._unsent, num_bytes)

    def receive(self, place: Place[T]) -> T | None:
        """Return the next message, once all of its payload lies in its place; None until more comes.

        Raises:
            ValueError, MsgspecError: the other end breaks the rules.
        """
        if self._message is None:
            message = self._receive_message(place)
            if message is None:
                return None
            self._message = message
        if not self._receive_payload():
            return None
        message, self._message = self._message, None
        return message

    def discard(self) -> None:
        """Throw away the rest of the payload that is arriving."""
        self._targets.clear()

    def close(self) -> None:
        self._connection.close()

    def _receive_message(self, place: Place[T]) -> T | None:
        if not self._fill_head(_SIZES.size):
            return None
        message_bytes, payload_bytes = _SIZES.unpack_from(self._head)
        if message_bytes > self._max_message_bytes:
            raise ValueError(f"a message has {message_bytes} bytes; allowed: {self._max_message_bytes}")
        if not self._fill_head(_SIZES.size + message_bytes):
            return None
        message = self._decode(bytes(self._head[_SIZES.size :]))
        self._head = bytearray()
        self._targets = deque(place(message, payload_bytes))
        self._num_left = payload_bytes
        return message

    def _fill_head(self, num_bytes: int) -> bool:
        """True if the frame's first bytes are here, so many."""
        while len(self._head) < num_bytes:
            try:
                received = self._connection.recv(num_bytes - len(self._head))
            except BlockingIOError:
                return False
            _require_any(len(received))
            self._head += received
        return True

    def _receive_payload(self) -> bool:
        """True if it is complete."""
        while self._num_left:
            targets = list(islice(self._targets, _MAX_PIECES)) or [
                memoryview(bytearray(min(self._num_left, _SCRAP_BYTES)))
            ]
            try:
                num_bytes = self._connection.recvmsg_into(targets)[0]
            except BlockingIOError:
                return False
            _require_any(num_bytes)
            self._num_left -= num_bytes
            if self._targets:
                _advance(self._targets, num_bytes)
        return True


def _require_any(num_bytes: int) -> None:
    if not num_bytes:
        raise ConnectionResetError("the other end has closed the connection")


def _advance(pieces: deque[memoryview], num_bytes: int) -> None:
    """Take off the first bytes, which are done with."""
    while num_bytes:
        first = pieces[0]
        if num_bytes < len(first):
            pieces[0] = first[num_bytes:]
            return
        num_bytes -= len(first)
        pieces.popleft()
