"""Comments between the events of a stream: while the next one takes long, and at no other time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Struct

from baton_core.errors import ErrorCode, RequestError
from baton_router.http import comments
from baton_router.http.calls import Call
from baton_router.http.comments import with_comments
from baton_router.http.errors import failure_of
from baton_router.http.middleware import REQUEST_NAME, RequestName
from baton_router.process.http_settings import AnswerSettings, HttpSettings

SILENT_S = 0.02
FAULT = RequestError(ErrorCode.DEADLINE_EXCEEDED, "not finished within 9 s")


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

    async for chunk in with_comments(chunks(), say, SILENT_S):
        said.append(str(chunk))
        await asyncio.sleep(3 * SILENT_S)  # a client that reads slowly is not silent
    await asyncio.sleep(3 * SILENT_S)
    assert said == ["1", "begin", "end", "2"]


async def test_an_interval_of_0_leaves_comments_out() -> None:
    async def chunks() -> AsyncGenerator[int, None]:
        await asyncio.sleep(SILENT_S)
        yield 1

    async def say() -> None:
        raise AssertionError("a comment")

    assert [chunk async for chunk in with_comments(chunks(), say, 0.0)] == [1]


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

    scope = {"type": "http", "headers": [], REQUEST_NAME: RequestName("r1", Counter())}
    state = SimpleNamespace(settings=HttpSettings(answers=AnswerSettings(keep_alive_s=SILENT_S)))
    call: Call[None] = Call(state, scope, receive, send)  # type: ignore[arg-type]
    with pytest.raises(RequestError):
        await call.stream(chunks())
    await call.fail(failure_of(FAULT))
    start, *bodies = sent
    assert start["status"] == 200
    assert bodies[0]["body"] == comments.COMMENT
    assert bodies[-1]["body"].startswith(b"data: {")
    assert bodies[-1]["body"].endswith(b"data: [DONE]\n\n")
