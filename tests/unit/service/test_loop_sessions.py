"""`LoopSession`: what a stream's end means, where reading and writing learn of it at different times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeAlias

import grpc
import pytest

from baton_core.sessions.session import Heartbeat, SessionTimings
from baton_service.sessions import Frame, LoopSession, StreamBrokenError

pytestmark = pytest.mark.slow

Write: TypeAlias = Callable[[Frame[bytes]], Awaitable[None]]
TIMINGS = SessionTimings(heartbeat_s=0.01, dead_after_s=5.0, resume_within_s=5.0)


@pytest.mark.parametrize("says_farewell", [True, False])
async def test_a_farewell_is_read_although_the_writer_learns_of_the_end_first(says_farewell: bool) -> None:
    session, over = _session()
    is_refused = asyncio.Event()

    async def write(frame: Frame[bytes]) -> None:
        is_refused.set()
        raise ConnectionResetError("the stream has ended")

    async def frames() -> AsyncGenerator[Frame[bytes], None]:
        await is_refused.wait()
        await asyncio.sleep(0.02)
        if not says_farewell:
            raise StreamBrokenError("reset")
        return
        yield Heartbeat(0, 0)  # makes this a generator

    await _serve(session, frames(), write)
    assert session.is_ended_by_peer is says_farewell
    assert bool(over) is says_farewell


async def test_a_stream_that_takes_nothing_and_never_ends_is_given_up() -> None:
    session, over = _session()

    async def write(frame: Frame[bytes]) -> None:
        raise ConnectionResetError("the stream has ended")

    async def frames() -> AsyncGenerator[Frame[bytes], None]:
        await asyncio.Event().wait()
        yield Heartbeat(0, 0)

    async with asyncio.timeout(4.0):
        await _serve(session, frames(), write)
    assert not over  # the session waits for its next stream


async def test_an_error_of_grpc_in_a_write_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="baton_service.sessions")
    session, _ = _session()
    is_refused = asyncio.Event()

    async def write(frame: Frame[bytes]) -> None:
        is_refused.set()
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "reset"
        )

    async def frames() -> AsyncGenerator[Frame[bytes], None]:
        await is_refused.wait()
        raise StreamBrokenError("reset")
        yield Heartbeat(0, 0)  # makes this a generator

    await _serve(session, frames(), write)
    (line,) = (text for text in caplog.messages if "cannot be written" in text)
    assert "INTERNAL" in line
    assert "\n" not in line


def _session() -> tuple[LoopSession[bytes, bytes], list[str]]:
    over: list[str] = []
    session: LoopSession[bytes, bytes] = LoopSession(
        "peer", TIMINGS, on_message=lambda message: None, on_over=over.append
    )
    return session, over


async def _serve(
    session: LoopSession[bytes, bytes], frames: AsyncGenerator[Frame[bytes], None], write: Write
) -> None:
    async def farewell(reader: asyncio.Task[None]) -> None:
        raise AssertionError("nothing ends this side")

    stream = session.attach(1, 0)
    session.send(b"one")
    await session.run_stream(stream, frames, write, farewell)
