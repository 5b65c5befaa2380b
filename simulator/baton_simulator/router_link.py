"""The worker's end of its session with one router: dials it, and dials again, as the worker's shell does."""

from __future__ import annotations

from typing import Any, Final

from baton_core.sessions.handshake import begins_after_welcome
from baton_core.sessions.router_messages import ToRouter
from baton_core.worker.worker_events import FromRouter, RouterJoined, RouterLost
from baton_simulator.interfaces import WorkerNode
from baton_simulator.network import BROKEN, ENDED, Stream
from baton_simulator.session_end import Frames, Hello, SessionEnd, Welcome

_MIN_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 1.0


class RouterLink:
    """Keeps a session with the router of that name, whichever of its lives answers."""

    def __init__(self, worker: WorkerNode, router: str) -> None:
        self._worker = worker
        self._router = router
        self._session: SessionEnd | None = None
        self._router_id = ""
        self._stream: Stream | None = None
        self._dialed_at = 0.0
        self._greet_by: float | None = None
        self._offered_epoch = 0
        """Epoch of the session for which the stream was dialed."""
        self._backoff_s = _MIN_BACKOFF_S

    def next_deadline(self) -> float | None:
        session = None if self._session is None else self._session.machine.next_deadline()
        return min((one for one in (self._greet_by, session) if one is not None), default=None)

    def dial(self) -> None:
        """Open a stream and say hello."""
        worker, session = self._worker, self._session
        self._dialed_at = worker.now
        self._greet_by = worker.now + worker.cluster.conditions.timings.dead_after_s
        self._stream = worker.cluster.dial(worker.name, self._router, self._on_frame)
        epoch, received = (0, 0) if session is None else (session.epoch, session.machine.received)
        self._offered_epoch = epoch
        self._stream.send(worker.name, Hello(info=worker.info, router_epoch=epoch, received=received))
        worker.arm()

    def send(self, router_id: str, message: ToRouter) -> None:
        """Queue a message; dropped unless that session is the present one."""
        if self._session is not None and self._router_id == router_id:
            self._session.machine.send(message)

    def settle(self) -> None:
        if self._session is not None:
            self._session.settle()

    def on_deadline(self) -> None:
        if self._session is not None:
            self._session.on_deadline()
        if self._greet_by is not None and self._worker.now >= self._greet_by and self._stream is not None:
            self._leave(self._stream)

    def crash(self) -> None:
        if self._stream is not None:
            self._stream.crash(self._worker.name)

    def _on_frame(self, stream: Stream, frame: Any) -> None:
        self._worker.take(lambda: self._take(stream, frame))

    def _take(self, stream: Stream, frame: Any) -> None:
        if stream is not self._stream:
            return
        session = self._session
        match frame:
            case Welcome():
                self._attach(stream, frame)
            case Frames() if session is not None:
                session.on_frames(stream, frame)
            case str() if frame == ENDED:
                if session is not None and session.stream is stream:
                    session.close(f"router {self._router} ended the session")
                self._leave(stream)
            case str() if frame == BROKEN:
                self._leave(stream)
        self._worker.settle()

    def _attach(self, stream: Stream, welcome: Welcome) -> None:
        """Resume the session that was offered, or begin another."""
        self._greet_by = None
        offered = self._session
        if offered is not None and offered.attach(stream, welcome.epoch, welcome.received):
            return
        if not begins_after_welcome(welcome.epoch, self._offered_epoch):
            self._leave(stream)
            return
        worker = self._worker
        router_id = self._router_id = f"{welcome.router_id}:{welcome.epoch}"
        session = self._session = SessionEnd(
            worker,
            f"router {self._router}",
            welcome.epoch,
            worker.cluster.conditions.timings,
            on_message=lambda message: worker.on_event(FromRouter(router_id=router_id, message=message)),
            on_over=lambda reason: self._on_over(router_id, reason),
            load=lambda: worker.core.load(worker.now),
        )
        worker.on_event(RouterJoined(router_id=router_id))
        session.attach(stream, welcome.epoch, welcome.received)

    def _on_over(self, router_id: str, reason: str) -> None:
        session, self._session = self._session, None
        worker = self._worker
        worker.cluster.log.add(worker.name, f"its session with {self._router} is over", reason)
        worker.on_event(RouterLost(router_id=router_id))
        if session is not None and session.stream is not None and session.stream is self._stream:
            self._leave(session.stream)

    def _leave(self, stream: Stream) -> None:
        """Give up a stream and dial again after a while; nothing if that was done already."""
        if stream is not self._stream:
            return
        self._greet_by = None
        self._stream = None
        stream.crash(self._worker.name)
        if self._session is not None:
            self._session.detach(stream)
        if self._worker.now - self._dialed_at > _MAX_BACKOFF_S:
            self._backoff_s = _MIN_BACKOFF_S
        self._worker.after(self._backoff_s, self.dial)
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)
