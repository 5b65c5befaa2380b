"""The time limit of a call, as an error that its client reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton_core.errors import ErrorCode, RequestError


@asynccontextmanager
async def ends_within(timeout_s: float, at: float | None = None) -> AsyncIterator[None]:
    """End a block that takes longer than `timeout_s`, at the loop's time `at` if that is given.

    Raises:
        RequestError: DEADLINE_EXCEEDED.
    """
    try:
        async with asyncio.timeout(timeout_s) if at is None else asyncio.timeout_at(at):
            yield
    except TimeoutError:
        raise RequestError(ErrorCode.DEADLINE_EXCEEDED, f"not finished within {timeout_s:.3g} s") from None
