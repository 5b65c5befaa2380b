"""Holds back the requests that have not begun, while an operator pauses or the weights are switched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton_core.errors import ErrorCode, RequestError
from baton_router.core.router_events import HoldDispatch


class DispatchHold:
    """The hold of one router, on its loop.

    Args:
        notify: passes an event to the router's core.
        num_begun: counts the requests that do not wait for their first worker.
    """

    def __init__(self, notify: Callable[[HoldDispatch], None], num_begun: Callable[[], int]) -> None:
        self._notify = notify
        self._count_begun = num_begun
        self._reasons: set[str] = set()
        self._is_idle = asyncio.Event()

    @property
    def num_begun(self) -> int:
        """Requests that do not wait for their first worker."""
        return self._count_begun()

    @property
    def is_holding(self) -> bool:
        return bool(self._reasons)

    def is_held_for(self, reason: str) -> bool:
        return reason in self._reasons

    def hold(self, reason: str) -> None:
        """Have requests that have not begun wait, until no reason is left; clients read the reasons."""
        self._reasons.add(reason)
        self._notify_core()

    def release(self, reason: str) -> None:
        """Dispatch the requests that wait, unless they are held for another reason."""
        self._reasons.discard(reason)
        self._notify_core()

    def note(self) -> None:
        """Look at the requests again; called after each event of the router."""
        if self.num_begun:
            self._is_idle.clear()
        else:
            self._is_idle.set()

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until no request has begun that is not over.

        Raises:
            RequestError: DEADLINE_EXCEEDED.
        """
        self.note()
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()
        except TimeoutError:
            text = f"{self.num_begun} requests still run after {timeout_s:g} s"
            raise RequestError(ErrorCode.DEADLINE_EXCEEDED, text) from None

    def _notify_core(self) -> None:
        self._notify(HoldDispatch(why=" and ".join(sorted(self._reasons))))
