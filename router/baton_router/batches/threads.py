"""Calls that block, in threads, whose callers may be cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

R = TypeVar("R")
P = ParamSpec("P")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function in a thread, as `asyncio.to_thread`; who is cancelled waits for its end, too."""
    running = asyncio.create_task(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def opened(open_it: Callable[[], R], close: Callable[[R], object]) -> R:
    """Open something in a thread; where the caller is cancelled meanwhile, it is closed there."""
    opening = asyncio.create_task(asyncio.to_thread(open_it))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            await in_thread(close, opening.result())
        raise
