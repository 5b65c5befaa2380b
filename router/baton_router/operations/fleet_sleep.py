"""Puts workers to sleep together: all that were named, or none of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from baton_core.errors import ErrorCode
from baton_core.sessions.control_messages import ControlAction, ControlResult
from baton_core.sessions.sleep_arguments import check_wake_up, read_sleep_level
from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_router.operations.turns import Turns

Results: TypeAlias = dict[str, ControlResult]
ControlWorkers: TypeAlias = Callable[[ControlAction, str, float, Sequence[str]], Awaitable[Results]]
_WAKE_TO_PAUSE: Final = '{"tags": ["weights", "kv_cache"]}'
"""Argument that restores the memory of workers that stay paused."""
SLEEP_ACTIONS: Final = (ControlAction.SLEEP, ControlAction.WAKE_UP)


class FleetSleep:
    """One router's sleeps and wake-ups, one at a time. Each continues if its caller goes away.

    Args:
        control: sends a control to the workers named, or to all; returns their results by name.
        workers: gives those that are registered now.
        num_requests: counts those that are open at this router.
        turns: shared with other operations that must not meet a sleep.
    """

    def __init__(
        self,
        control: ControlWorkers,
        workers: Callable[[], Sequence[tuple[WorkerInfo, WorkerLoad]]],
        num_requests: Callable[[], int],
        turns: Turns,
    ) -> None:
        self._control = control
        self._workers = workers
        self._num_requests = num_requests
        self._turns = turns

    async def change(
        self, action: ControlAction, argument_json: str, timeout_s: float, worker_ids: Sequence[str]
    ) -> Results:
        """Do one of `SLEEP_ACTIONS`; if one worker does not sleep, those that do are woken again.

        Raises:
            InvalidRequestError: the argument is wrong.
            RequestError: as of `control`; or DEADLINE_EXCEEDED, an earlier one has not ended.
        """
        level = read_sleep_level(argument_json) if action is ControlAction.SLEEP else None
        if level is not None:
            sleep = partial(self._sleep, argument_json, timeout_s, worker_ids, level)
            return await self._turns.run(action, timeout_s, sleep)
        check_wake_up(argument_json)
        wake_up = partial(self._control, action, argument_json, timeout_s, worker_ids)
        return await self._turns.run(action, timeout_s, wake_up)

    async def _sleep(
        self, argument_json: str, timeout_s: float, worker_ids: Sequence[str], level: int
    ) -> Results:
        names = [info.worker_id for info, _ in self._workers()]
        if level and set(worker_ids) <= set(names) and (num_requests := self._num_requests()):
            text = f"sleep has to wait: level is {level}; allowed with {num_requests} requests open: 0"
            refused = ControlResult(control_id=0, code=ErrorCode.OVERLOADED, message=text)
            return dict.fromkeys(sorted(worker_ids or names), refused)
        was_asleep = {info.worker_id for info, load in self._workers() if load.is_asleep}
        was_paused = {info.worker_id for info, load in self._workers() if load.is_paused} - was_asleep
        results = await self._control(ControlAction.SLEEP, argument_json, timeout_s, worker_ids)
        failed = {name: result for name, result in results.items() if result.code is not None}
        present = {info.worker_id for info, _ in self._workers()}
        asleep = [name for name in _may_sleep(results) if name in present - was_asleep]
        to_pause = [name for name in asleep if name in was_paused] if level else []
        to_wake = [name for name in asleep if name not in was_paused]
        if not failed or not (to_pause or to_wake):
            return results
        woken: Results = {}
        for names, argument in ((to_wake, "{}"), (to_pause, _WAKE_TO_PAUSE)):
            if names:
                woken |= await self._control(ControlAction.WAKE_UP, argument, timeout_s, names)
        return _undone(failed, woken, results)


def _may_sleep(results: Mapping[str, ControlResult]) -> list[str]:
    """Return workers that sleep, or may yet begin to: a missing result is no refusal."""
    codes = (None, ErrorCode.DEADLINE_EXCEEDED)
    return [name for name, result in results.items() if result.code in codes]


def _undone(
    failed: Mapping[str, ControlResult],
    woken: Mapping[str, ControlResult],
    results: Mapping[str, ControlResult],
) -> Results:
    """Return the results of a sleep that was undone; the workers that did not sleep come first."""
    wakes = ", ".join(
        f"{name} was woken again"
        if result.code is None
        else f"{name} could not be woken again ({result.message})"
        for name, result in woken.items()
    )
    (first, why), *_ = failed.items()
    undone = {name: replace(result, message=f"{result.message}; {wakes}") for name, result in failed.items()}
    for name, result in results.items():
        if name not in failed:
            text = f"{first} does not sleep ({why.message}); {wakes}"
            undone[name] = replace(result, result_json="null", code=why.code, message=text)
    return undone
