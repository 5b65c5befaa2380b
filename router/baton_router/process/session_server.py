"""The router's end of all sessions: the `Sessions` service, one `LoopSession` per worker.

Streams are always drained. Each session has an epoch of its own, counted up from the router's, so a worker
that asks for a session that is over here finds out by the reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import grpc

from baton_core.errors import BatonError, IncompatibleWorkerError, InvalidRequestError
from baton_core.sessions.handshake import HelloAnswer, answer_hello
from baton_core.sessions.router_messages import ToRouter, ToWorker
from baton_core.sessions.session import DEFAULT_TIMINGS, Data, Heartbeat, SessionTimings
from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_proto.v1 import session_pb2 as pb
from baton_proto.v1 import session_pb2_grpc
from baton_service.sessions import LoopSession
from baton_service.wire.wire_commands import encode_command
from baton_service.wire.wire_reports import decode_report
from baton_service.wire.wire_worker import decode_hello, decode_load, require_own_version

_CANCEL_WITHIN_S: Final = 0.05
"""A broken connection ends the input and right after cancels the call; a farewell only ends the input."""
_MAX_REFUSALS: Final = 256
"""Workers of which the last refusal is remembered."""
_MAX_TEXT: Final = 1000
"""Characters of a name or of a reason that are logged."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCallbacks:
    """Callbacks of the router, all called on the loop."""

    check: Callable[[WorkerInfo], None]
    """May raise IncompatibleWorkerError: the worker is refused, and an earlier one of its name stays."""
    on_joined: Callable[[WorkerInfo], None]
    """May raise IncompatibleWorkerError, too."""
    on_message: Callable[[str, ToRouter], None]
    on_load: Callable[[str, WorkerLoad], None]
    on_left: Callable[[str, str], None]
    """Worker and reason, exactly once after each `on_joined` that returned."""


class RouterProcesses(Protocol):
    """The processes of one router, each of which has sessions with all workers."""

    @property
    def session_port(self) -> int:
        """Port at which workers reach this process."""
        ...

    @property
    def session_ports(self) -> Sequence[int]:
        """Ports of all processes that are there."""
        ...


@dataclass(frozen=True, slots=True)
class _Session:
    epoch: int
    loop_session: LoopSession[pb.RouterData, ToRouter]


class _RefusalLog:
    """Logs once why a worker is refused, however often it returns with the same reason."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, str] = OrderedDict()
        """By worker; the oldest are forgotten first."""

    def log(self, worker_id: str, error: BatonError) -> None:
        """Note a refusal; a stream without a name gets a line each time."""
        name, text = worker_id[:_MAX_TEXT], str(error)[:_MAX_TEXT]
        is_known = bool(name) and self._last.get(name) == text
        _log.log(logging.DEBUG if is_known else logging.WARNING, "worker %r is refused: %s", name, text)
        self._last[name] = text
        self._last.move_to_end(name)
        if len(self._last) > _MAX_REFUSALS:
            self._last.popitem(last=False)

    def forget(self, worker_id: str) -> None:
        """Note that the worker was taken."""
        self._last.pop(worker_id[:_MAX_TEXT], None)


class SessionServer(session_pb2_grpc.SessionsServicer):
    """Add it to a server with `add_SessionsServicer_to_server`; make it on the loop that serves.

    Args:
        router_id: name that workers see.
        epoch: differs at every start of the router and leaves room to count up, such as a time in ns.
        has_locality: whether workers need not say over the session what they have cached.
    """

    def __init__(
        self,
        router_id: str,
        epoch: int,
        callbacks: WorkerCallbacks,
        timings: SessionTimings = DEFAULT_TIMINGS,
        *,
        has_locality: bool = False,
    ) -> None:
        self._router_id = router_id
        self._has_locality = has_locality
        self._next_epoch = epoch
        self._callbacks = callbacks
        self._timings = timings
        self._sessions: dict[str, _Session] = {}
        self._refusals = _RefusalLog()
        self._is_closing = False
        self.processes: RouterProcesses | None = None
        """The processes of this router, where there are several; set before it serves."""

    def send(self, worker_id: str, message: ToWorker) -> None:
        """Queue `message`; dropped when the worker has left, which `on_left` reported or is about to report.

        Raises:
            InvalidRequestError: the message cannot be sent, see `encode_command`.
        """
        session = self._sessions.get(worker_id)
        if session is not None:
            session.loop_session.send(encode_command(message))

    def close(self) -> None:
        """End all sessions, with a farewell to each worker, before the server stops."""
        self._is_closing = True
        for session in list(self._sessions.values()):
            session.loop_session.close("the router shuts down")

    async def Connect(  # noqa: N802 (name of the protocol)
        self, request_iterator: AsyncIterator[pb.WorkerFrame], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Serve one stream of a worker.

        Raises:
            InvalidRequestError: it sends what has no meaning.
            IncompatibleWorkerError: it may not join.
        """
        peer = ""
        try:
            hello = await self._read_hello(request_iterator)
            peer = hello.worker_id
            require_own_version(hello)
            if (processes := self.processes) is not None and hello.process_port != processes.session_port:
                ports = pb.Processes(ports=processes.session_ports)
                await self._write_first(context, pb.RouterFrame(processes=ports))
                return
            session, stream = self._attach(hello, decode_hello(hello))
        except BatonError as error:
            self._refusals.log(peer, error)
            rejected = pb.Rejected(
                code=error.code, message=str(error), is_permanent=_is_permanent(error, has_hello=bool(peer))
            )
            await self._write_first(context, pb.RouterFrame(rejected=rejected))
            raise
        self._refusals.forget(peer)
        await self._serve(session, stream, hello.worker_id, request_iterator, context)
        if (malformed := session.loop_session.malformed) is not None:
            raise malformed

    async def _read_hello(self, frames: AsyncIterator[pb.WorkerFrame]) -> pb.Hello:
        try:
            async with asyncio.timeout(self._timings.dead_after_s):
                frame = await anext(frames)
        except (TimeoutError, StopAsyncIteration):
            raise InvalidRequestError("frame", None, "a hello first") from None
        if not frame.HasField("hello"):
            raise InvalidRequestError("frame", frame.WhichOneof("frame"), "a hello first")
        return frame.hello

    async def _write_first(self, context: grpc.aio.ServicerContext[Any, Any], frame: pb.RouterFrame) -> bool:
        """Answer a hello; False if the worker does not take it in time."""
        try:
            async with asyncio.timeout(self._timings.dead_after_s):
                await context.write(frame)
        except TimeoutError:
            _log.warning(
                "a worker did not take the answer to its hello within %g s", self._timings.dead_after_s
            )
            return False
        return True

    def _attach(self, hello: pb.Hello, info: WorkerInfo) -> tuple[_Session, int]:
        """Resume the worker's session with this stream, or end it and begin another."""
        session = self._sessions.get(info.worker_id)
        known_epoch = None if session is None else session.loop_session.peer_epoch
        answer = answer_hello(
            info.epoch,
            hello.router_epoch,
            session_epoch=None if session is None else session.epoch,
            known_epoch=known_epoch,
        )
        if answer is HelloAnswer.REFUSE:
            raise IncompatibleWorkerError(
                f"worker_id is {info.worker_id!r}; allowed: a name that no worker started later has"
            )
        if info.epoch != known_epoch:
            self._callbacks.check(info)
        if session is not None and answer is HelloAnswer.RESUME:
            stream = session.loop_session.attach(info.epoch, hello.received)
            if not session.loop_session.is_over:
                return session, stream
        elif session is not None:
            session.loop_session.close(f"worker {info.worker_id} began a new session")
        session = self._sessions[info.worker_id] = self._new_session(info.worker_id)
        try:
            self._callbacks.on_joined(info)
        except BatonError:
            del self._sessions[info.worker_id]
            raise
        return session, session.loop_session.attach(info.epoch, 0)

    def _new_session(self, worker_id: str) -> _Session:
        def on_over(reason: str) -> None:
            del self._sessions[worker_id]
            is_farewell = self._is_closing or loop_session.is_ended_by_peer
            level = logging.INFO if is_farewell else logging.WARNING
            _log.log(level, "worker %s left: %s", worker_id, reason)
            self._callbacks.on_left(worker_id, reason)

        epoch = self._next_epoch
        self._next_epoch += 1
        loop_session: LoopSession[pb.RouterData, ToRouter] = LoopSession(
            f"worker {worker_id}",
            self._timings,
            on_message=partial(self._callbacks.on_message, worker_id),
            on_over=on_over,
            size=pb.RouterData.ByteSize,
        )
        return _Session(epoch, loop_session)

    async def _serve(
        self,
        session: _Session,
        stream: int,
        worker_id: str,
        frames: AsyncIterator[pb.WorkerFrame],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        async def write(frame: Data[pb.RouterData] | Heartbeat) -> None:
            await context.write(_encode_frame(frame))

        loop_session = session.loop_session
        welcome = pb.Welcome(
            router_id=self._router_id,
            epoch=session.epoch,
            received=loop_session.received,
            has_locality=self._has_locality,
        )
        try:
            if not await self._write_first(context, pb.RouterFrame(welcome=welcome)):
                return
            await loop_session.run_stream(stream, self._decode(session, worker_id, frames), write, _end_call)
        finally:
            loop_session.detach(stream)

    async def _decode(
        self, session: _Session, worker_id: str, frames: AsyncIterator[pb.WorkerFrame]
    ) -> AsyncGenerator[Data[ToRouter] | Heartbeat, None]:
        async for frame in frames:
            match frame.WhichOneof("frame"):
                case "data":
                    yield Data(frame.data.number, decode_report(frame.data))
                case "heartbeat":
                    if not session.loop_session.is_over:
                        self._callbacks.on_load(worker_id, decode_load(frame.heartbeat.load))
                    yield Heartbeat(frame.heartbeat.sent, frame.heartbeat.received)
                case other:
                    raise InvalidRequestError("frame", other, "data or heartbeat after the hello")
        await asyncio.sleep(_CANCEL_WITHIN_S)


def _is_permanent(error: BatonError, *, has_hello: bool) -> bool:
    """Return whether the worker would be refused again; a late hello may be in time the next time."""
    if isinstance(error, IncompatibleWorkerError):
        return error.is_permanent
    return has_hello and isinstance(error, InvalidRequestError)


def _encode_frame(frame: Data[pb.RouterData] | Heartbeat) -> pb.RouterFrame:
    if isinstance(frame, Heartbeat):
        return pb.RouterFrame(heartbeat=pb.RouterHeartbeat(sent=frame.sent, received=frame.received))
    frame.payload.number = frame.number
    return pb.RouterFrame(data=frame.payload)


async def _end_call(reader: asyncio.Task[None]) -> None:
    """The worker learns by the end of the call that the session is over."""
