"""Pauses generation, as vLLM's `/pause` and `/resume` do: requests that come meanwhile wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from baton_core.errors import InvalidRequestError
from baton_core.sessions.control_messages import ControlAction, ControlResult
from baton_router.operations.dispatch_hold import DispatchHold

PAUSE_MODES: Final = ("abort", "wait", "keep")
Control: TypeAlias = Callable[[ControlAction, str, float], Awaitable[dict[str, ControlResult]]]
PAUSED: Final = "an operator has paused generation"


class Pauses:
    """The pause of one router, on its loop.

    Args:
        control: sends a control to all workers; returns their results.
        abort: ends all requests with an error.
    """

    def __init__(self, control: Control, hold: DispatchHold, abort: Callable[[], None]) -> None:
        self._control = control
        self._hold = hold
        self._abort = abort
        self._num_beginning = 0
        """Number of calls of `pause` that have not ended."""
        self._lasts = False
        """True from a `pause` that succeeded to `resume`."""

    @property
    def is_paused(self) -> bool:
        return self._hold.is_held_for(PAUSED)

    async def pause(self, mode: str, timeout_s: float, *, clear_cache: bool) -> dict[str, ControlResult]:
        """Have new requests wait until `resume`; returns the workers' results.

        Where a worker's result is an error, or this raises, only an earlier pause lasts.

        Args:
            mode: `abort` ends running requests with an error, `wait` lets them end, `keep` stops them where
                they are.
            clear_cache: whether cached prefixes are forgotten; not with `keep`.

        Raises:
            InvalidRequestError: there is no such mode.
            RequestError: DEADLINE_EXCEEDED, running requests have not ended; or as of `control`.
        """
        if mode not in PAUSE_MODES:
            raise InvalidRequestError("mode", mode, ", ".join(PAUSE_MODES))
        self._num_beginning += 1
        self._hold.hold(PAUSED)
        try:
            results = await self._stop(mode, timeout_s, clear_cache=clear_cache)
            if all(result.code is None for result in results.values()):
                self._lasts = self.is_paused
        finally:
            self._num_beginning -= 1
            if not (self._lasts or self._num_beginning):
                self._hold.release(PAUSED)
        return results

    async def resume(self, timeout_s: float) -> dict[str, ControlResult]:
        """Go on, even where workers cannot be told; returns their results."""
        try:
            return await self._control(ControlAction.WAKE_UP, '{"tags": ["scheduling"]}', timeout_s)
        finally:
            self._lasts = False
            self._hold.release(PAUSED)

    async def _stop(self, mode: str, timeout_s: float, *, clear_cache: bool) -> dict[str, ControlResult]:
        """Stop or end what runs, while new requests wait."""
        if mode == "keep":
            return await self._control(ControlAction.SLEEP, '{"level": 0}', timeout_s)
        if mode == "abort":
            self._abort()
        await self._hold.wait_idle(timeout_s)
        return await self._control(ControlAction.RESET_PREFIX_CACHE, "{}", timeout_s) if clear_cache else {}
