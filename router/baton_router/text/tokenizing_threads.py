"""A few threads beside the router's loop for long work: tokenizing, its reverse, and large bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import partial
from typing import Final, ParamSpec, TypeVar

from baton_router.text.tenant_turns import TenantTurns

NUM_THREADS: Final = 3
"""Threads of each lane."""
MAX_WAITING: Final = 1024
"""Functions that wait for a thread of one lane."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Lane(Enum):
    """Kinds of work, by how long it may take. Each has threads of its own and waits for its own kind."""

    SHORT = auto()
    """Milliseconds: a prompt of an ordinary length."""
    GRAMMAR = auto()
    """The same and the check of a grammar, which may take its whole time limit."""
    LONG = auto()
    """Large texts, and chat templates that came with the request."""
    BODY = auto()
    """Large bodies and answers, which take up to a second to read or make."""


class TokenizingThreads:
    """Runs functions, a bounded number at a time, in turns of the tenants.

    Args:
        max_waiting: as `MAX_WAITING`.
    """

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        self._turns = {lane: TenantTurns(NUM_THREADS, max_waiting=max_waiting) for lane in Lane}
        self._threads = ThreadPoolExecutor(NUM_THREADS * len(Lane), thread_name_prefix="tokenize")

    async def run(
        self, tenant: str, lane: Lane, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Call `function` in a thread; what it returns or raises is returned or raised.

        Raises:
            RequestError: OVERLOADED, too many wait; UNAVAILABLE, the router shuts down.
        """
        turns = self._turns[lane]
        await turns.take(tenant)
        running = asyncio.wrap_future(self._threads.submit(function, *args, **kwargs))
        running.add_done_callback(partial(_on_done, turns, tenant))
        try:
            # Shielded: a thread continues although its caller is gone, and counts until it is done.
            return await asyncio.shield(running)
        finally:
            del running  # An error that it holds would hold this frame, and so itself and all arguments.

    def close(self) -> None:
        """Wait for the functions in work, refuse those that wait."""
        for turns in self._turns.values():
            turns.close()
        self._threads.shutdown(cancel_futures=True)


def _on_done(turns: TenantTurns, tenant: str, running: asyncio.Future[_T]) -> None:
    turns.release(tenant)
    if not running.cancelled():
        running.exception()  # seen, should its caller be gone
