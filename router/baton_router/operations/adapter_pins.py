"""Has workers keep LoRA adapters loaded: all of them the same ones; workers that join follow."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_core.sessions.control_messages import ControlAction, ControlResult
from baton_core.sessions.pin_arguments import read_pinned
from baton_router.operations.turns import Turns
from baton_router.operations.worker_tasks import WorkerTasks

Results: TypeAlias = dict[str, ControlResult]
ControlWorkers: TypeAlias = Callable[[ControlAction, str, float, Sequence[str]], Awaitable[Results]]
_PIN: Final = ControlAction.PIN_ADAPTERS
_NONE: Final = '{"numbers": []}'
_FOLLOW_TIMEOUT_S: Final = 120.0
_UNDO_WITHIN_S: Final = 1.0
"""Time to wait for answers of those that undo a pin: they are told in order, a silent one when it wakes."""
_log = logging.getLogger(__name__)


class AdapterPins:
    """The adapters that one router's workers keep loaded, on its loop.

    Args:
        control: sends a control to the workers named, or to all; returns their results by name.
    """

    def __init__(self, control: ControlWorkers) -> None:
        self._control = control
        self._turns = Turns(_PIN)
        self._argument = ""
        """The argument that all workers have; empty where nobody has tried to pin any."""
        self._following = WorkerTasks()
        """Tasks that tell a worker that joined what the others keep."""

    async def pin(self, argument_json: str, timeout_s: float, worker_ids: Sequence[str]) -> Results:
        """Have all workers keep these adapters; if one refuses, all keep what they did before.

        A worker that is lost meanwhile is left out, unless none remains.

        Raises:
            InvalidRequestError: the argument is wrong, or workers are named: all keep the same adapters.
            RequestError: as of `control`; or DEADLINE_EXCEEDED, an earlier one has not ended.
        """
        if worker_ids:
            raise InvalidRequestError("worker_ids", list(worker_ids), "none: all keep the same adapters")
        read_pinned(argument_json)
        return await self._turns.run(_PIN, timeout_s, partial(self._pin_all, argument_json, timeout_s))

    def on_joined(self, worker_id: str) -> None:
        """Have a worker keep what the others do."""
        if self._argument:
            self._following.begin(worker_id, partial(self._follow, worker_id))

    def on_left(self, worker_id: str) -> None:
        self._following.on_left(worker_id)

    def close(self) -> None:
        """Cancel what runs or waits for its turn."""
        self._following.close()
        self._turns.close()

    async def _pin_all(self, argument_json: str, timeout_s: float) -> Results:
        before, self._argument = self._argument or _NONE, argument_json
        has_pinned = False
        try:
            results = await self._control(_PIN, argument_json, timeout_s, ())
            left = {one: result for one, result in results.items() if result.code != ErrorCode.WORKER_LOST}
            has_pinned = bool(left) and all(result.code is None for result in left.values())
        finally:
            if not has_pinned:
                self._argument = before
        if left and not has_pinned:
            await self._control(_PIN, before, _UNDO_WITHIN_S, ())
        return left or results

    async def _follow(self, worker_id: str) -> None:
        try:
            await self._turns.run(_PIN, _FOLLOW_TIMEOUT_S, partial(self._pin_one, worker_id))
        except BatonError as error:
            _log.warning("worker %s does not keep the adapters that the others do: %s", worker_id, error)

    async def _pin_one(self, worker_id: str) -> None:
        control = self._control(_PIN, self._argument, _FOLLOW_TIMEOUT_S, (worker_id,))
        (result,) = (await control).values()
        if result.code is not None:
            raise RequestError(result.code, result.message)
