"""Comments between the events of a stream: while the next one takes long, and at no other time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import Struct

from baton_core.errors import ErrorCode, RequestError
from baton_router.http import comments
from baton_router.http.calls import Call
from baton_router.http.comments import with_comments
from baton_router.http.errors import failure_of

SILENT_S = 0.02
FAULT = RequestError(ErrorCode.DEADLINE_EXCEEDED, "not finished within 9 s")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comments, "SILENT_S", SILENT_S)


async def test_a_comment_that_is_being_sent_ends_before_the_next_chunk() -> None:
    said: list[str] = []

    async def chunks() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.sleep(3 * SILENT_S)
        yield 2

    async def say() -> None:
        said.append("begin")
        await asyncio.sleep(5 * SILENT_S)
        said.append("end")

    async for chunk in with_comments(chunks(), say):
        said.append(str(chunk))
        await asyncio.sleep(3 * SILENT_S)  # a client that reads slowly is not silent
    await asyncio.sleep(3 * SILENT_S)
    assert said == ["1", "begin", "end", "2"]


async def test_a_stream_may_begin_with_a_comment_and_a_failure_is_then_an_event() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def chunks() -> AsyncGenerator[Struct, None]:
        await asyncio.sleep(4 * SILENT_S)
        raise FAULT
        yield Struct()

    scope = {"type": "http", "headers": [], "baton.request_id": "r1"}
    call: Call[None] = Call(None, scope, receive, send)  # type: ignore[arg-type]
    with pytest.raises(RequestError):
        await call.stream(chunks())
    await call.fail(failure_of(FAULT))
    start, *bodies = sent
    assert start["status"] == 200
    assert bodies[0]["body"] == comments.COMMENT
    assert bodies[-1]["body"].startswith(b"data: {")
    assert bodies[-1]["body"].endswith(b"data: [DONE]\n\n")
