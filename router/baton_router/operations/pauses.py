"""Pauses generation, as vLLM's `/pause` and `/resume` do: requests that come meanwhile wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from baton_core.errors import ErrorCode
from baton_core.sessions.control_messages import ControlAction, ControlResult
from baton_core.sessions.sleep_arguments import check_sleep_mode, read_sleep_level
from baton_router.operations.dispatch_hold import DispatchHold

Control: TypeAlias = Callable[[ControlAction, str, float], Awaitable[dict[str, ControlResult]]]
PAUSED: Final = "an operator has paused generation"
_SLEEPING: Final = "an operator puts the workers to sleep"
_POLL_S: Final = 0.2
"""Interval at which workers are asked again that still end requests or transfers."""


class Pauses:
    """The pause of one router, on its loop.

    Args:
        control: sends a control to all workers; returns their results.
        abort: ends all requests with an error, for a reason that clients read.
    """

    def __init__(self, control: Control, hold: DispatchHold, abort: Callable[[str], None]) -> None:
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
        check_sleep_mode(0, mode)
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

    async def sleep(self, level: int, mode: str, timeout_s: float) -> dict[str, ControlResult]:
        """Put the workers to sleep with no request open, but for those that `keep` keeps; as `pause`.

        Requests that come meanwhile wait, and then find workers that sleep.

        Raises:
            InvalidRequestError: there is no such level or mode, or they do not go together.
            RequestError: as `pause`.
        """
        argument_json = json.dumps({"level": level})
        check_sleep_mode(read_sleep_level(argument_json), mode)
        deadline = asyncio.get_running_loop().time() + timeout_s
        self._hold.hold(_SLEEPING)
        try:
            await self._end(mode, timeout_s, _SLEEPING)
            while True:
                left_s = max(deadline - asyncio.get_running_loop().time(), _POLL_S)
                results = await self._control(ControlAction.SLEEP, argument_json, left_s)
                is_busy = any(result.code is ErrorCode.OVERLOADED for result in results.values())
                if not is_busy or left_s <= _POLL_S:
                    return results
                await asyncio.sleep(_POLL_S)
        finally:
            self._hold.release(_SLEEPING)

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
        await self._end(mode, timeout_s, PAUSED)
        return await self._control(ControlAction.RESET_PREFIX_CACHE, "{}", timeout_s) if clear_cache else {}

    async def _end(self, mode: str, timeout_s: float, reason: str) -> None:
        """Wait until nothing runs that is not kept."""
        if mode == "abort":
            self._abort(f"{reason}; send the request again")
        if mode != "keep":
            await self._hold.wait_idle(timeout_s)
