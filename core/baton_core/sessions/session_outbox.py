"""The messages of one end of a session that the peer has not acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Data(Generic[Payload]):
    """A numbered message."""

    number: int
    payload: Payload


class Outbox(Generic[Payload]):
    """Messages for the peer: numbered and unacknowledged first, then those never written.

    Args:
        size: bytes of a message.
    """

    def __init__(self, size: Callable[[Payload], int]) -> None:
        self.numbered = 0
        """The highest number given."""
        self.written = 0
        """Number of the last message written since the last rewind."""
        self.acknowledged = 0
        self.num_bytes = 0
        """Bytes of all messages that it holds."""
        self._size = size
        self._sizes: deque[int] = deque()
        """Bytes of each message, in their order."""
        self._numbered: dict[int, Payload] = {}
        self._unnumbered: deque[Payload] = deque()
        self._written_by_last_heartbeat = 0

    def __len__(self) -> int:
        return len(self._numbered) + len(self._unnumbered)

    @property
    def has_unwritten(self) -> bool:
        return self.written < self.numbered or bool(self._unnumbered)

    def append(self, message: Payload) -> None:
        self._unnumbered.append(message)
        self._sizes.append(self._size(message))
        self.num_bytes += self._sizes[-1]

    def merge_last(self, message: Payload, merge: Callable[[Payload, Payload], Payload | None]) -> bool:
        """Join `message` to the last one if that was never written; say whether it was."""
        merged = merge(self._unnumbered[-1], message) if self._unnumbered else None
        if merged is None:
            return False
        self._unnumbered[-1] = merged
        self.num_bytes -= self._sizes.pop()
        self._sizes.append(self._size(merged))
        self.num_bytes += self._sizes[-1]
        return True

    def write_next(self) -> Data[Payload] | None:
        if not self.has_unwritten:
            return None
        self.written += 1
        if self.written > self.numbered:
            self.numbered = self.written
            self._numbered[self.numbered] = self._unnumbered.popleft()
        return Data(self.written, self._numbered[self.written])

    def can_resume_after(self, received: int) -> bool:
        return self.acknowledged <= received <= self.numbered

    def resume_after(self, received: int) -> None:
        """Start over on a new stream with the message after `received`."""
        self._forget_to(received)
        self.written = self._written_by_last_heartbeat = received

    def on_acknowledged(self, received: int) -> None:
        """Take the peer's count; write again if it lacks what was written before its last heartbeat."""
        if received < self.acknowledged:
            return
        has_progress = received > self.acknowledged
        self._forget_to(received)
        if not has_progress and self._written_by_last_heartbeat > received:
            self.written = received
        self.written = max(self.written, received)
        self._written_by_last_heartbeat = self.written

    def check_invariants(self) -> None:
        assert self.acknowledged <= self.written <= self.numbered
        assert list(self._numbered) == list(range(self.acknowledged + 1, self.numbered + 1))
        assert len(self._sizes) == len(self)
        assert self.num_bytes == sum(self._sizes)

    def _forget_to(self, received: int) -> None:
        for number in range(self.acknowledged + 1, received + 1):
            del self._numbered[number]
            self.num_bytes -= self._sizes.popleft()
        self.acknowledged = received
