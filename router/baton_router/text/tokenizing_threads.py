"""A few threads beside the router's loop for what takes too long on it: tokenizing and its reverse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from baton_core.errors import ErrorCode, RequestError

NUM_THREADS: Final = 2
MAX_WAITING: Final = 1024

_P = ParamSpec("_P")
_T = TypeVar("_T")


class TokenizingThreads:
    """Runs functions, a bounded number at a time.

    Args:
        max_waiting: functions taken at a time; the next one is refused.
    """

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call `function` in a thread; what it returns or raises is returned or raised.

        Raises:
            RequestError: OVERLOADED, too many wait.
        """
        if self._num_waiting >= self._max_waiting:
            text = f"{self._num_waiting} prompts wait to be tokenized; allowed: {self._max_waiting}"
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._num_waiting += 1
        running = asyncio.wrap_future(self._threads.submit(function, *args, **kwargs))
        running.add_done_callback(self._on_done)
        try:
            # Shielded: a thread continues although its caller is gone, and counts until it is done.
            return await asyncio.shield(running)
        finally:
            del running  # An error that it holds would hold this frame, and so itself and all arguments.

    def close(self) -> None:
        """Wait for the functions in work, drop those that wait."""
        self._threads.shutdown(cancel_futures=True)

    def _on_done(self, running: asyncio.Future[_T]) -> None:
        self._num_waiting -= 1
        if not running.cancelled():
            running.exception()  # seen, should its caller be gone
