"""Comments in a stream of server-sent events, so that no balancer takes a silent connection for dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

T = TypeVar("T")
COMMENT: Final = b": keepalive\n\n"
"""Clients of server-sent events skip it."""
SILENT_S: Final = 15.0
"""Shortest silence before a comment; the longest is twice that."""


async def with_comments(
    chunks: AsyncGenerator[T, None], say: Callable[[], Awaitable[None]]
) -> AsyncGenerator[T, None]:
    """Yield the chunks; `say` sends a comment again and again while the next chunk takes long.

    Comments go out only between the chunks, and none after them.
    """
    num_chunks, is_waiting = 0, True
    saying: asyncio.Future[None] | None = None

    async def comment() -> None:
        nonlocal saying
        while True:
            seen = num_chunks
            await asyncio.sleep(SILENT_S)
            if is_waiting and num_chunks == seen:
                saying = asyncio.ensure_future(say())
                await asyncio.wait([saying])

    commenting = asyncio.create_task(comment())
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                num_chunks, is_waiting = num_chunks + 1, False
                if saying is not None and not saying.done():
                    await asyncio.wait([saying])
                yield chunk
                is_waiting = True
    finally:
        commenting.cancel()
        if saying is not None:
            saying.cancel()
