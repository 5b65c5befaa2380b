"""One end of a session, as the shells drive it: the machine, its stream, and one announcement of its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from baton_core.sessions.session import Heartbeat, SessionMachine, SessionTimings
from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_simulator.interfaces import SessionOwner
from baton_simulator.network import Stream

_FRAMES_PER_TURN: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of a stream, from the worker that dialed."""

    info: WorkerInfo
    router_epoch: int
    """Epoch of the session to resume; 0 for none."""
    received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The router's answer."""

    router_id: str
    epoch: int
    """Epoch of the session, which is new unless the requested one is resumed."""
    received: int


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames that one end writes at a time."""

    frames: tuple[Any, ...]
    load: WorkerLoad | None = None
    """With a worker's heartbeat."""


class SessionEnd:
    """A session at a node.

    Args:
        epoch: the router's name of the session.
        on_message: gets each message once, in order.
        on_over: gets the reason, once.
        load: what heartbeats carry.
    """

    def __init__(
        self,
        node: SessionOwner,
        peer: str,
        epoch: int,
        timings: SessionTimings,
        *,
        on_message: Callable[[Any], None],
        on_over: Callable[[str], None],
        load: Callable[[], WorkerLoad] | None = None,
    ) -> None:
        self.epoch = epoch
        self.machine: SessionMachine[Any, Any] = SessionMachine(peer, timings)
        self.stream: Stream | None = None
        self._node = node
        self._on_message = on_message
        self._on_over = on_over
        self._load = load
        self._is_announced = False

    @property
    def is_over(self) -> bool:
        return self.machine.is_over

    def attach(
        self,
        stream: Stream,
        peer_epoch: int,
        peer_received: int,
        answer: Callable[[], None] = lambda: None,
    ) -> bool:
        """Go on with a new stream, `answer` first; False if the session is over instead."""
        if not self.is_over:
            self.machine.on_connected(self._node.now, peer_epoch, peer_received)
        if not self.is_over:
            if self.stream is not None:
                self.stream.end(self._node.name)
            self.stream = stream
            answer()
        self.settle()
        return not self.is_over

    def detach(self, stream: Stream) -> None:
        """A stream is gone; nothing if the session goes on with another one."""
        if stream is self.stream and not self.is_over:
            self.stream = None
            self.machine.on_disconnected(self._node.now)
            self.settle()

    def close(self, reason: str) -> None:
        if not self.is_over:
            self.machine.close(reason)
        self.settle()

    def on_frames(self, stream: Stream, frames: Frames) -> None:
        for frame in frames.frames:
            if stream is not self.stream:
                return
            for message in self.machine.on_frame(self._node.now, frame):
                self._on_message(message)

    def on_deadline(self) -> None:
        self.machine.on_deadline(self._node.now)
        self.settle()

    def settle(self) -> None:
        """Write what is to be written, or announce the end and say farewell."""
        if self.machine.has_frames:
            self._write()
        elif self.is_over and not self._is_announced:
            self._is_announced = True
            if self.stream is not None:
                self.stream.end(self._node.name)
            self._on_over(self.machine.reason)

    def _write(self) -> None:
        if self.stream is None:
            return
        frames = self.machine.take_frames(self._node.now, _FRAMES_PER_TURN)
        if frames:
            has_beat = any(isinstance(frame, Heartbeat) for frame in frames)
            load = self._load() if has_beat and self._load is not None else None
            self.stream.send(self._node.name, Frames(frames, load))
