"""Comments in a stream of server-sent events, so that no balancer takes a silent connection for dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

T = TypeVar("T")
COMMENT: Final = b": keepalive\n\n"
"""Clients of server-sent events skip it."""


async def with_comments(
    chunks: AsyncGenerator[T, None], say: Callable[[], Awaitable[None]], silent_s: float
) -> AsyncGenerator[T, None]:
    """Yield the chunks; `say` sends a comment after every `silent_s` seconds that the next chunk takes.

    With 0 seconds there are none. Comments go out only between the chunks, and none after them.
    """
    now = asyncio.get_running_loop().time
    last_s, is_waiting = now(), True
    saying: asyncio.Future[None] | None = None

    async def comment() -> None:
        nonlocal saying, last_s
        while silent_s:
            await asyncio.sleep(last_s + silent_s - now())
            if now() < last_s + silent_s:
                continue
            if is_waiting:
                saying = asyncio.ensure_future(say())
                await asyncio.wait([saying])
            last_s = now()

    commenting = asyncio.create_task(comment())
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                is_waiting = False
                if saying is not None and not saying.done():
                    await asyncio.wait([saying])
                yield chunk
                last_s, is_waiting = now(), True
    finally:
        commenting.cancel()
        if saying is not None:
            saying.cancel()
