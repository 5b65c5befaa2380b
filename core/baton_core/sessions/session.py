"""One end of the session between a router and a worker: what to write, what to deliver, when it is over.

Both ends use the same machine. Messages are numbered from 1; the receiver takes only the next number
(go-back-N), so each is delivered once and in order over a transport that loses, repeats, delays or reorders
frames, and over a stream that breaks and is resumed. Heartbeats carry what was written and received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from baton_core.errors import InvalidRequestError, require
from baton_core.sessions.session_state import TERMINAL, SessionInput, SessionState, next_state

Sent = TypeVar("Sent")
Received = TypeVar("Received")
Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Data(Generic[Payload]):
    """A numbered message."""

    number: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Heartbeat:
    sent: int
    """Number of the last message written, counted anew from the first that is written again."""
    received: int
    """Number of the last message received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTimings:
    """Limits of a session; equal at both ends.

    Raises:
        InvalidConfigError: a value is out of range; the message names it.
    """

    heartbeat_s: float = 0.5
    dead_after_s: float = 1.5
    """Silence on a connected stream after which the session is over."""
    resume_within_s: float = 1.0
    """Time that a broken stream may take to come back."""
    max_unacknowledged: int = 4096
    """Messages that may wait for the peer, those not yet written included."""
    max_unacknowledged_bytes: int = 2**30
    """Bytes of these messages; one alone may be larger."""

    def __post_init__(self) -> None:
        require("heartbeat_s", self.heartbeat_s, self.heartbeat_s > 0, "over 0")
        is_patient = self.dead_after_s > self.heartbeat_s
        require("dead_after_s", self.dead_after_s, is_patient, f"over heartbeat_s ({self.heartbeat_s:g})")
        require("resume_within_s", self.resume_within_s, self.resume_within_s > 0, "over 0")
        for name in ("max_unacknowledged", "max_unacknowledged_bytes"):
            require(name, getattr(self, name), getattr(self, name) > 0, "1 or more")


DEFAULT_TIMINGS: Final = SessionTimings()


class SessionMachine(Generic[Sent, Received]):
    """One end of one session. `now` is in seconds of one clock that never goes back.

    Args:
        peer: how `reason` names the other end, such as `worker w1`.
        merge: joins two consecutive messages that were never written into one, or returns None.
        size: bytes of a message; they are not limited without it.
    """

    def __init__(
        self,
        peer: str,
        timings: SessionTimings = DEFAULT_TIMINGS,
        merge: Callable[[Sent, Sent], Sent | None] = lambda earlier, later: None,
        size: Callable[[Sent], int] = lambda message: 0,
    ) -> None:
        self._state = SessionState.NEW
        self._reason = ""
        self._divergence: InvalidRequestError | None = None
        self._peer = peer
        self._timings = timings
        self._merge = merge
        self._peer_epoch: int | None = None
        self._size = size
        self._outbox = Outbox[Sent](size)
        self._received = 0
        self._shown = 0  # the `received` of the last heartbeat written
        self._is_heartbeat_due = False
        self._beat_at = 0.0
        self._heard_at = 0.0
        self._broken_at = 0.0
        self._called_at = 0.0

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def reason(self) -> str:
        """The reason why the session ended, naming what was waited for; empty until then."""
        return self._reason

    @property
    def divergence(self) -> InvalidRequestError | None:
        """The error of the peer's counts, if they have ended the session."""
        return self._divergence

    @property
    def is_over(self) -> bool:
        return self._state in TERMINAL

    @property
    def received(self) -> int:
        """Number of the last message received: what a new stream tells the peer."""
        return self._received

    @property
    def peer_epoch(self) -> int | None:
        """None before the first stream."""
        return self._peer_epoch

    @property
    def has_frames(self) -> bool:
        """True if `take_frames` would return any without waiting for a deadline."""
        is_connected = self._state is SessionState.CONNECTED
        return is_connected and (self._is_heartbeat_due or self._outbox.has_unwritten)

    def send(self, message: Sent) -> None:
        """Queue `message`; the session is over when too many wait. Does nothing once it is over."""
        if self.is_over:
            return
        if self._outbox.merge_last(message, self._merge):
            return
        limit, limit_bytes = self._timings.max_unacknowledged, self._timings.max_unacknowledged_bytes
        if len(self._outbox) >= limit:
            self._end(SessionInput.OVERFLOW, f"more than {limit} messages wait for {self._peer}")
        elif self._outbox.num_bytes >= limit_bytes:
            self._end(SessionInput.OVERFLOW, f"more than {limit_bytes} bytes wait for {self._peer}")
        else:
            self._outbox.append(message)

    def take_frames(self, now: float, limit: int) -> tuple[Data[Sent] | Heartbeat, ...]:
        """Hand over what to write now, at most `limit` (1 or more) frames; nothing without a stream."""
        if self._state is not SessionState.CONNECTED:
            return ()
        self._note_time(now)
        self._beat(now)
        frames: list[Data[Sent] | Heartbeat] = []
        if self._is_heartbeat_due:
            self._is_heartbeat_due = False
            self._shown = self._received
            frames.append(Heartbeat(self._outbox.written, self._received))
        while len(frames) < limit and (data := self._outbox.write_next()) is not None:
            frames.append(data)
        return tuple(frames)

    def on_frame(self, now: float, frame: Data[Received] | Heartbeat) -> tuple[Received, ...]:
        """Take a frame and return the messages it completes; a frame of a stream that is gone is dropped."""
        if self._state is not SessionState.CONNECTED:
            return ()
        self._note_time(now)
        self._heard_at = now
        if isinstance(frame, Heartbeat):
            self._on_heartbeat(now, frame)
            return ()
        if frame.number != self._received + 1:
            if frame.number > self._received:
                self._hasten_heartbeat(now)
            return ()
        self._received = frame.number
        if self._received - self._shown >= max(1, self._timings.max_unacknowledged // 4):
            self._is_heartbeat_due = True
        return (frame.payload,)

    def on_connected(self, now: float, peer_epoch: int, peer_received: int) -> None:
        """Use a new stream, on which the peer said that it has `peer_received` messages.

        The session is over instead if the peer restarted, comes too late, or counts otherwise.
        """
        if self._is_resume_late(now):
            self._end_not_resumed()
        elif self._peer_epoch not in (None, peer_epoch):
            self._end(SessionInput.PEER_RESTARTED, f"{self._peer} restarted")
        elif not self._outbox.can_resume_after(peer_received):
            self._end_diverged(peer_received)
        else:
            self._apply(SessionInput.STREAM_UP)
            self._peer_epoch = peer_epoch
            self._outbox.resume_after(peer_received)
            self._called_at = self._heard_at = now
            self._beat_at = now + self._timings.heartbeat_s
            self._is_heartbeat_due = True

    def on_disconnected(self, now: float) -> None:
        """The stream is gone."""
        self._apply(SessionInput.STREAM_DOWN)
        self._broken_at = now

    def close(self, reason: str) -> None:
        """End the session from this side, or because the peer said goodbye."""
        self._end(SessionInput.CLOSE, reason)

    def next_deadline(self) -> float | None:
        """The time to call `on_deadline`; None while nothing is waited for."""
        match self._state:
            case SessionState.CONNECTED:
                return min(self._beat_at, self._heard_at + self._timings.dead_after_s)
            case SessionState.BROKEN:
                return self._broken_at + self._timings.resume_within_s
            case _:
                return None

    def on_deadline(self, now: float) -> None:
        """Let time pass; too early a call changes nothing."""
        if self._is_resume_late(now):
            self._end_not_resumed()
        elif self._state is SessionState.CONNECTED:
            self._note_time(now)
            if now >= self._heard_at + self._timings.dead_after_s:
                silence = f"no frame from {self._peer} for {self._timings.dead_after_s:g} s"
                self._end(SessionInput.PEER_SILENT, silence)
            else:
                self._beat(now)

    def check_invariants(self) -> None:
        assert self.is_over == bool(self._reason)
        assert 0 <= self._shown <= self._received
        assert (self._state is SessionState.NEW) <= (self._peer_epoch is None)
        assert len(self._outbox) <= self._timings.max_unacknowledged
        self._outbox.check_invariants()

    def _on_heartbeat(self, now: float, heartbeat: Heartbeat) -> None:
        if heartbeat.received > self._outbox.numbered:
            self._end_diverged(heartbeat.received)
            return
        self._outbox.on_acknowledged(heartbeat.received)
        if heartbeat.sent > self._received:
            self._hasten_heartbeat(now)

    def _beat(self, now: float) -> None:
        if now >= self._beat_at:
            self._is_heartbeat_due = True
            self._beat_at = now + self._timings.heartbeat_s

    def _hasten_heartbeat(self, now: float) -> None:
        """Show the peer a gap soon; not at once, or two ends with gaps would answer each other forever."""
        self._beat_at = min(self._beat_at, now + self._timings.heartbeat_s / 4)

    def _note_time(self, now: float) -> None:
        """Give the peer one more heartbeat after a pause of this end, which is not the peer's silence."""
        timings = self._timings
        if now - self._called_at > 2 * timings.heartbeat_s:
            self._heard_at = max(self._heard_at, now - timings.dead_after_s + timings.heartbeat_s)
        self._called_at = now

    def _is_resume_late(self, now: float) -> bool:
        return self._state is SessionState.BROKEN and now >= self._broken_at + self._timings.resume_within_s

    def _end_not_resumed(self) -> None:
        limit = f"{self._timings.resume_within_s:g} s"
        self._end(SessionInput.NOT_RESUMED, f"{self._peer} did not resume its broken stream within {limit}")

    def _end_diverged(self, peer_received: int) -> None:
        allowed = f"{self._outbox.acknowledged} to {self._outbox.numbered}"
        self._divergence = InvalidRequestError("received", peer_received, allowed)
        reason = f"{self._peer} says that it received message {peer_received}; allowed: {allowed}"
        self._end(SessionInput.PEER_DIVERGED, reason)

    def _end(self, cause: SessionInput, reason: str) -> None:
        self._apply(cause)
        self._reason = reason
        self._outbox = Outbox(self._size)

    def _apply(self, cause: SessionInput) -> None:
        self._state = next_state(self._state, cause)


class Outbox(Generic[Payload]):
    """Messages that the peer has not acknowledged: the numbered ones first, then those never written.

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
