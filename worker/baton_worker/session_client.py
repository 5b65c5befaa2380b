"""The worker's end of the session with one router: dials it, and dials again, until closed.

A router that refuses the worker is dialed on, less and less often: what it minds may change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import grpc

from baton_core.errors import InvalidRequestError
from baton_core.sessions.handshake import begins_after_welcome
from baton_core.sessions.router_messages import ToRouter, ToWorker
from baton_core.sessions.session import DEFAULT_TIMINGS, Data, Heartbeat, SessionTimings
from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_proto.v1 import session_pb2 as pb
from baton_proto.v1.session_pb2_grpc import SessionsStub
from baton_service.grpc_options import MAX_EMBEDDED_BYTES, message_options
from baton_service.router_access import RouterAccess
from baton_service.sessions import LoopSession, StreamBrokenError
from baton_service.wire.wire_commands import decode_command
from baton_service.wire.wire_reports import encode_report, merge_reports, split_report
from baton_service.wire.wire_worker import encode_hello, encode_load

_MIN_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 1.0
_MAX_REFUSED_BACKOFF_S: Final = 10.0
"""Between two tries of a router that has answered, and refused this worker."""
_ASK_AGAIN_S: Final = 2.0
"""Time between two questions for the processes of a router."""
_FAREWELL_WITHIN_S: Final = 1.0
_CHANNEL_OPTIONS: Final = (*message_options(MAX_EMBEDDED_BYTES), ("grpc.use_local_subchannel_pool", 1))
"""Channels that share a subchannel would share its backoff too."""
_STREAM_ERRORS: Final = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""Exceptions of reading or writing a stream that is gone."""
_log = logging.getLogger(__name__)

_Call: TypeAlias = grpc.aio.StreamStreamCall[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCallbacks:
    """Callbacks of the worker, called on the loop.

    A router's id names one session with it, so a router that restarts has a new one.
    """

    on_joined: Callable[[str, bool], None]
    """Router, and whether it hears of cached blocks from elsewhere than the session."""
    on_message: Callable[[str, ToWorker], None]
    on_lost: Callable[[str], None]
    """Exactly once after each `on_joined`: what that router asked for is to be cancelled."""
    on_refusal: Callable[[], None] = lambda: None
    """A router refuses this worker, for another reason than before, or refuses it no more."""
    on_processes: Callable[[str, Sequence[str]], None] = lambda address, processes: None
    """The router at an address has several processes, each of which is to be dialed at its own address."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a router does not take this worker now."""

    message: str
    is_permanent: bool
    """True if that router says that it never will."""


@dataclass(frozen=True, slots=True)
class _Session:
    router_id: str
    epoch: int
    loop_session: LoopSession[pb.WorkerData, ToWorker]


class SessionClient:
    """The worker's end of the session with the router at `address` (`host:port`).

    Args:
        load: gives what each heartbeat reports.
        names_process: the address is that of one process, if the router has several.
        access: how routers let this worker in; without it, in plain text and without a key.
    """

    def __init__(
        self,
        address: str,
        info: WorkerInfo,
        load: Callable[[], WorkerLoad],
        callbacks: RouterCallbacks,
        timings: SessionTimings = DEFAULT_TIMINGS,
        access: RouterAccess | None = None,
        *,
        names_process: bool = False,
    ) -> None:
        self._address = address
        self._process_port = int(address.rpartition(":")[2]) if names_process else 0
        self.is_forwarded = False
        """True if the router has named its processes instead of taking this worker."""
        self._access = access or RouterAccess()
        self.info = info
        """The registration, as the next hello has it."""
        self._load = load
        self._callbacks = callbacks
        self._timings = timings
        self._session: _Session | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._is_closing = False
        self._is_on_stream = False
        self.unreachable = ""
        """The reason why the last try did not reach the router; empty if it answered."""
        self._is_told = False
        """The router, out of reach or not, has said that it goes."""
        self.router_name = ""
        """The router's name in the last session; empty before the first."""
        self.refusal: Refusal | None = None
        """The router's last refusal; None if it takes this worker, or has not answered."""

    @property
    def has_session(self) -> bool:
        """True if there is one that is not over; its stream may be broken."""
        return self._session is not None

    async def run(self) -> None:
        """Keep a session with the router until `close`."""
        self._dialing = asyncio.create_task(self._dial_forever())
        try:
            await asyncio.wait({self._dialing})
        finally:
            self._dialing.cancel()
            await asyncio.gather(self._dialing, return_exceptions=True)
            self._is_closing = True
            self._end("the worker stopped")
        if not self._dialing.cancelled():
            self._dialing.result()

    def send(self, router_id: str, message: ToRouter) -> None:
        """Queue `message`; dropped unless the session that `router_id` names is the present one.

        Raises:
            InvalidRequestError: the message cannot be sent, see `encode_report`.
        """
        session = self._session
        if session is not None and session.router_id == router_id:
            for part in split_report(message):
                session.loop_session.send(encode_report(part))

    async def close(self, within_s: float = 2.0) -> None:
        """Say the rest, and farewell, so that the router need not wait, and let `run` return.

        Cut off after `within_s`.
        """
        self._is_closing = True
        if self._session is not None and self._is_on_stream:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_WITHIN_S):
                    await self._session.loop_session.flush()
        self._end("the worker shuts down")
        if self._dialing is None:
            return
        if self._is_on_stream:
            await asyncio.wait({self._dialing}, timeout=within_s)
        self._dialing.cancel()
        await asyncio.wait({self._dialing})

    def _end(self, reason: str) -> None:
        if self._session is not None:
            self._session.loop_session.close(reason)

    async def _dial_forever(self) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = _MIN_BACKOFF_S
        while not self._is_closing:
            began = loop.time()
            await self._dial()
            if loop.time() - began > _MAX_BACKOFF_S:
                backoff_s = _MIN_BACKOFF_S
            if self.is_forwarded:
                backoff_s = _ASK_AGAIN_S
            await asyncio.sleep(0 if self._is_closing else backoff_s)
            most_s = _MAX_BACKOFF_S if self.refusal is None else _MAX_REFUSED_BACKOFF_S
            backoff_s = min(2 * backoff_s, most_s)

    async def _dial(self) -> None:
        """Open one stream and serve it to its end."""
        offered = self._session
        epoch, received = (0, 0) if offered is None else (offered.epoch, offered.loop_session.received)
        hello = encode_hello(
            self.info, router_epoch=epoch, received=received, process_port=self._process_port
        )
        async with self._access.open_async_channel(self._address, _CHANNEL_OPTIONS) as channel:
            call = SessionsStub(channel).Connect(metadata=self._access.metadata)  # type: ignore[no-untyped-call]
            frame = await self._greet(call, pb.WorkerFrame(hello=hello))
            if frame is None:
                return
            attached = self._attach(frame.welcome, offered)
            if attached is not None:
                await self._serve(*attached, call)

    async def _greet(self, call: _Call, hello: pb.WorkerFrame) -> pb.RouterFrame | None:
        """Exchange the first frames; None if the router cannot be reached, or refuses this worker."""
        try:
            async with asyncio.timeout(self._timings.dead_after_s):
                await call.write(hello)
                frame = await call.read()
        except (TimeoutError, *_STREAM_ERRORS) as error:
            self._note_failure(await _status(call), error)
            return None
        self.unreachable, self._is_told = "", False
        refusal = self._refusal_in(frame)
        self._note_refusal(refusal)
        if refusal is not None:
            return None
        self.is_forwarded = frame.HasField("processes")
        if self.is_forwarded:
            host = self._address.rpartition(":")[0]
            self._callbacks.on_processes(self._address, [f"{host}:{port}" for port in frame.processes.ports])
        return frame if frame.HasField("welcome") else None

    def _refusal_in(self, frame: Any) -> Refusal | None:
        """Read the refusal from what a router answers to a hello; an answer without meaning is one, too."""
        if frame is grpc.aio.EOF:
            found = "the end of the stream"
        else:
            found = _kind_of(frame) or "a frame of an unknown kind"
        if found == "rejected":
            rejected = frame.rejected
            text = f"router {self._address} refuses this worker ({rejected.code}): {rejected.message}"
            return Refusal(text, rejected.is_permanent)
        if found == "processes" or (found == "welcome" and frame.welcome.epoch):
            return None
        found += " with epoch 0" * (found == "welcome")
        text = f"router {self._address} answers a hello with {found}"
        return Refusal(f"{text}; allowed: welcome with an epoch from 1, rejected or processes", False)

    def _note_refusal(self, refusal: Refusal | None) -> None:
        """Log what has changed, once, and say that it has."""
        if refusal == self.refusal:
            return
        self.refusal = refusal
        if refusal is not None:
            _log.warning("%s; trying on", refusal.message)
        self._callbacks.on_refusal()

    def _note_failure(self, status: grpc.StatusCode | None, error: Exception) -> None:
        """Log the first failure in a row; after a farewell there is nothing to say."""
        silence = f"no answer to a hello within {self._timings.dead_after_s:g} s"
        detail = silence if isinstance(error, TimeoutError) else _detail(error)
        reason = f"{detail}{self._access.advice(status, detail)}"
        if status is grpc.StatusCode.UNAUTHENTICATED:
            self.unreachable = ""
            refused = f"router {self._address} refuses this worker: {reason}"
            self._note_refusal(Refusal(refused, is_permanent=False))
            return
        self._note_refusal(None)
        if not self.unreachable:
            level = logging.DEBUG if self._is_told else logging.WARNING
            _log.log(level, "router %s cannot be reached, trying on: %s", self._address, reason)
        self.unreachable = f"router {self._address} cannot be reached: {reason}"

    def _attach(self, welcome: pb.Welcome, offered: _Session | None) -> tuple[_Session, int] | None:
        """Resume the session that was offered or begin another; None if it ended during the exchange."""
        if offered is not None and offered.epoch != welcome.epoch:
            what = "began another session: it restarted, or had given this one up"
            offered.loop_session.close(f"router {welcome.router_id} {what}")
        elif offered is not None:
            stream = offered.loop_session.attach(welcome.epoch, welcome.received)
            if not offered.loop_session.is_over:
                return offered, stream
        offered_epoch = 0 if offered is None else offered.epoch
        if self._is_closing or not begins_after_welcome(welcome.epoch, offered_epoch):
            return None
        self.router_name = welcome.router_id
        session = self._session = self._new_session(welcome)
        self._callbacks.on_joined(session.router_id, welcome.has_locality)
        return session, session.loop_session.attach(welcome.epoch, welcome.received)

    def _new_session(self, welcome: pb.Welcome) -> _Session:
        router_id = f"{welcome.router_id}:{welcome.epoch}"

        def on_over(reason: str) -> None:
            self._session = None
            self._is_told = loop_session.is_ended_by_peer
            level = logging.INFO if self._is_closing or self._is_told else logging.WARNING
            _log.log(level, "session with router %s is over: %s", router_id, reason)
            self._callbacks.on_lost(router_id)

        loop_session: LoopSession[pb.WorkerData, ToWorker] = LoopSession(
            f"router {welcome.router_id}",
            self._timings,
            on_message=partial(self._callbacks.on_message, router_id),
            on_over=on_over,
            merge=merge_reports,
            size=pb.WorkerData.ByteSize,
        )
        return _Session(router_id, welcome.epoch, loop_session)

    async def _serve(self, session: _Session, stream: int, call: _Call) -> None:
        async def write(frame: Data[pb.WorkerData] | Heartbeat) -> None:
            await call.write(self._encode_frame(frame))

        async def farewell(reader: asyncio.Task[None]) -> None:
            with suppress(TimeoutError, *_STREAM_ERRORS):
                async with asyncio.timeout(_FAREWELL_WITHIN_S):
                    await call.done_writing()
                    await asyncio.wait({reader})

        self._is_on_stream = True
        try:
            await session.loop_session.run_stream(stream, _decode(call), write, farewell)
        finally:
            self._is_on_stream = False
            session.loop_session.detach(stream)

    def _encode_frame(self, frame: Data[pb.WorkerData] | Heartbeat) -> pb.WorkerFrame:
        if isinstance(frame, Heartbeat):
            load = encode_load(self._load())
            heartbeat = pb.WorkerHeartbeat(sent=frame.sent, received=frame.received, load=load)
            return pb.WorkerFrame(heartbeat=heartbeat)
        frame.payload.number = frame.number
        return pb.WorkerFrame(data=frame.payload)


async def _decode(call: _Call) -> AsyncGenerator[Data[ToWorker] | Heartbeat, None]:
    try:
        while (frame := await call.read()) is not grpc.aio.EOF:
            match _kind_of(frame):
                case "data":
                    yield Data(frame.data.number, decode_command(frame.data))
                case "heartbeat":
                    yield Heartbeat(frame.heartbeat.sent, frame.heartbeat.received)
                case other:
                    raise InvalidRequestError("frame", other, "data or heartbeat after the welcome")
    except _STREAM_ERRORS as error:
        raise StreamBrokenError(_detail(error)) from None


def _kind_of(frame: pb.RouterFrame | None) -> str | None:
    """The field that is set in a frame; None for an unknown one, and for bytes that gRPC could not decode."""
    return None if frame is None else frame.WhichOneof("frame")


async def _status(call: _Call) -> grpc.StatusCode | None:
    """The error that a call ended with; None if it has not ended."""
    return await call.code() if call.done() else None


def _detail(error: Exception) -> str:
    """One line for a log."""
    return (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else repr(error)
