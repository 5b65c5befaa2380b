"""Resets of the workers' prefix caches that take the blocks of running requests too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from baton_core.sessions.control_messages import ControlAction, ControlResult
from baton_core.sessions.reset_arguments import resets_running_requests
from baton_router.operations.dispatch_hold import DispatchHold
from baton_router.operations.turns import Turns

Results: TypeAlias = dict[str, ControlResult]
Control: TypeAlias = Callable[[ControlAction, str, float, Sequence[str]], Awaitable[Results]]
_REASON: Final = "an operator resets the prefix caches"
_HAND_OVERS_END_WITHIN_S: Final = 20.0
"""Time that prompts have to reach the workers that decode them; a worker that waits longer keeps them."""


class CacheResets:
    """The resets of one router, on its loop.

    Args:
        control: sends a control to the workers named, or to all; returns their results.
    """

    def __init__(self, control: Control, hold: DispatchHold) -> None:
        self._control, self._hold = control, hold
        self._turns = Turns("reset_prefix_cache")

    async def reset(self, argument_json: str, timeout_s: float, worker_ids: Sequence[str]) -> Results:
        """Have workers forget their caches; returns their results.

        No request begins while workers wait for the end of hand-overs to take running requests' blocks.

        Raises:
            InvalidRequestError: the argument is wrong.
            RequestError: DEADLINE_EXCEEDED, an earlier reset has not ended; or as of `control`.
        """
        action = ControlAction.RESET_PREFIX_CACHE
        if not resets_running_requests(argument_json):
            return await self._control(action, argument_json, timeout_s, worker_ids)
        within_s = min(timeout_s, _HAND_OVERS_END_WITHIN_S)
        ask = partial(self._control, action, argument_json, within_s, worker_ids)
        return await self._turns.run(action, timeout_s, partial(self._while_held, ask))

    def close(self) -> None:
        """Cancel the reset that runs, and those that wait for their turn."""
        self._turns.close()

    async def _while_held(self, ask: Callable[[], Awaitable[Results]]) -> Results:
        self._hold.hold(_REASON)
        try:
            return await ask()
        finally:
            self._hold.release(_REASON)
