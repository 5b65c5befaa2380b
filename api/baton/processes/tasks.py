"""Tasks that end with the block that they are for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


@asynccontextmanager
async def cancelled_at_end(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run `work` as a task until the block is left."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await cancel([task])


async def ends_before(task: asyncio.Task[Any], bound: asyncio.Future[Any]) -> bool:
    """Wait until one of both is done; True if it is the task."""
    both: list[asyncio.Future[Any]] = [task, bound]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    return task.done()
