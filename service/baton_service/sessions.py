"""A session on the event loop: drives its machine with the time and its streams, and announces its end once.

Both ends use it; what differs, the frames and who dials, is in `session_server` and `session_client`.
Everything here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, Generic, TypeAlias, TypeVar

from baton_core.errors import InvalidRequestError
from baton_core.sessions.session import Data, Heartbeat, SessionMachine, SessionTimings

Sent = TypeVar("Sent")
Received = TypeVar("Received")
Frame: TypeAlias = Data[Received] | Heartbeat

_FRAMES_PER_TURN: Final = 64
_READ_OUT_WITHIN_S: Final = 1.0
"""Time to read what the peer sent before its end of the stream took no more."""
_log = logging.getLogger(__name__)


class StreamBrokenError(Exception):
    """The stream ended without its peer's farewell."""


class LoopSession(Generic[Sent, Received]):
    """One `SessionMachine` driven by the running loop.

    Args:
        peer: how reasons name the other end.
        on_message: gets each message once, in order.
        on_over: gets the reason, once; never called from inside `send`.
        merge, size: as of `SessionMachine`.
    """

    def __init__(
        self,
        peer: str,
        timings: SessionTimings,
        *,
        on_message: Callable[[Received], None],
        on_over: Callable[[str], None],
        merge: Callable[[Sent, Sent], Sent | None] = lambda earlier, later: None,
        size: Callable[[Sent], int] = lambda message: 0,
    ) -> None:
        self._machine: SessionMachine[Sent, Received] = SessionMachine(peer, timings, merge, size)
        self._peer = peer
        self._write_within_s = timings.dead_after_s
        self._on_message = on_message
        self._on_over = on_over
        self.malformed: InvalidRequestError | None = None
        """The error of the message or heartbeat that has ended the session."""
        self.is_ended_by_peer = False
        """True if the peer ended the session with a farewell."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._is_written = asyncio.Event()
        self._is_written.set()
        self._stream = 0  # number of the stream in use; frames and writers of earlier ones are stale
        self._timer: asyncio.TimerHandle | None = None
        self._is_announced = False

    @property
    def is_over(self) -> bool:
        return self._machine.is_over

    @property
    def received(self) -> int:
        """Number of the last message received, which a new stream reports to the peer."""
        return self._machine.received

    @property
    def peer_epoch(self) -> int | None:
        """None before the first stream."""
        return self._machine.peer_epoch

    def send(self, message: Sent) -> None:
        """Queue `message`, unless the session is over."""
        self._machine.send(message)
        self._is_written.clear()
        if self._machine.is_over:
            self._loop.call_soon(self._settle)
        else:
            self._wake.set()

    async def flush(self) -> None:
        """Wait until all sent messages are written or the session is over, also across a broken stream."""
        await self._is_written.wait()

    def close(self, reason: str) -> None:
        """End the session, unless it is over."""
        if not self.is_over:
            self._machine.close(reason)
        self._settle()

    def attach(self, peer_epoch: int, peer_received: int) -> int:
        """Use a new stream from here on and return its number; the session may be over instead."""
        if not self.is_over:
            self._machine.on_connected(self._loop.time(), peer_epoch, peer_received)
        self._stream += 1
        self._settle()
        return self._stream

    def detach(self, stream: int) -> None:
        """Note the end of `stream`; a session with a later stream, or an ended one, is unchanged."""
        if stream == self._stream and not self.is_over:
            self._machine.on_disconnected(self._loop.time())
            self._settle()

    async def run_stream(
        self,
        stream: int,
        frames: AsyncGenerator[Frame[Received], None],
        write: Callable[[Frame[Sent]], Awaitable[None]],
        farewell: Callable[[asyncio.Task[None]], Awaitable[None]],
    ) -> None:
        """Read and write until the stream is gone or replaced, or the session over.

        `frames` ends when the peer ended the session and raises StreamBrokenError when the stream broke.
        `farewell` is awaited when this end has written its last frame; it gets the task that still reads.
        """
        reader = asyncio.create_task(self._read(stream, frames))
        writer = asyncio.create_task(self._write(stream, write))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                return
            if writer.result():
                await farewell(reader)
            else:  # what the peer said before it ended the stream is still to be read: its farewell, say
                await asyncio.wait({reader}, timeout=_READ_OUT_WITHIN_S)
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self, stream: int, frames: AsyncGenerator[Frame[Received], None]) -> None:
        try:
            async with aclosing(frames):
                async for frame in frames:
                    if stream != self._stream:
                        return
                    for message in self._machine.on_frame(self._loop.time(), frame):
                        self._on_message(message)
                    self.malformed = self._machine.divergence
                    self._settle()
        except StreamBrokenError as error:
            _log.info("the stream to %s broke: %s", self._peer, error)
        except InvalidRequestError as error:
            self.malformed = error
            self.close(f"{self._peer} sent a malformed message: {error}")
        except Exception:
            _log.exception("a message from %s could not be taken", self._peer)
            self.close("internal error")
        else:
            if stream == self._stream:
                self.is_ended_by_peer = not self.is_over
                self.close(f"{self._peer} ended the session")

    async def _write(self, stream: int, write: Callable[[Frame[Sent]], Awaitable[None]]) -> bool:
        """Write until nothing may follow; False if the stream did not take it."""
        try:
            while stream == self._stream and not self.is_over:
                frames = self._machine.take_frames(self._loop.time(), _FRAMES_PER_TURN)
                for frame in frames:
                    async with asyncio.timeout(self._write_within_s):
                        await write(frame)
                if not frames:
                    self._wake.clear()
                    self._is_written.set()
                    await self._wake.wait()
        except Exception as error:
            told = " ".join(repr(error).split())  # gRPC's errors have several lines
            _log.info("the stream to %s cannot be written: %s", self._peer, told)
            return False
        return True

    def _settle(self) -> None:
        """Bring timer and writer up to date with the machine, and announce the end."""
        if self._machine.is_over:
            self._announce()
            return
        if self._machine.has_frames:
            self._wake.set()
        deadline = self._machine.next_deadline()
        if deadline is not None and (self._timer is None or deadline < self._timer.when()):
            self._cancel_timer()
            self._timer = self._loop.call_at(deadline, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        self._machine.on_deadline(self._loop.time())
        self._settle()

    def _announce(self) -> None:
        self._cancel_timer()
        self._wake.set()
        self._is_written.set()
        if not self._is_announced:
            self._is_announced = True
            self._on_over(self._machine.reason)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
