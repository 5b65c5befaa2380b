"""Puts workers to sleep together: all that were named, or none of them; workers that join follow."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from baton_core.errors import BatonError, ErrorCode, RequestError
from baton_core.sessions.control_messages import (
    AWAY_AT,
    ENGINE_MEMORY,
    ControlAction,
    ControlResult,
    EnginePart,
)
from baton_core.sessions.sleep_arguments import read_sleep_level, read_wake_up_tags
from baton_router.core.fleet.fleet import Fleet
from baton_router.operations.turns import Turns
from baton_router.operations.worker_tasks import WorkerTasks

Results: TypeAlias = dict[str, ControlResult]
ControlWorkers: TypeAlias = Callable[[ControlAction, str, float, Sequence[str]], Awaitable[Results]]
_WAKE_TO_PAUSE: Final = '{"tags": ["weights", "kv_cache"]}'
"""Argument that restores the memory of workers that stay paused."""
SLEEP_ACTIONS: Final = (ControlAction.SLEEP, ControlAction.WAKE_UP)
_FOLLOW_TIMEOUT_S: Final = 120.0
_FOLLOW_AGAIN_S: Final = 1.0
_log = logging.getLogger(__name__)


class FleetSleep:
    """One router's sleeps and wake-ups, one at a time. Each continues if its caller goes away.

    Args:
        control: sends a control to the workers named, or to all; returns their results by name.
        fleet: the workers; it knows what those that join have to give up.
        num_requests: counts those that are open at this router; of those that are held back, none.
        turns: shared with other operations that must not meet a sleep.
        held_probes: within this block no probe of a transfer is open, which workers would not sleep beside.
    """

    def __init__(
        self,
        control: ControlWorkers,
        fleet: Fleet,
        num_requests: Callable[[], int],
        turns: Turns,
        held_probes: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._control = control
        self._fleet = fleet
        self._workers = fleet.workers
        self._num_requests = num_requests
        self._turns = turns
        self._held_probes = held_probes
        self._level = 1
        """The level at which the fleet last gave up memory."""
        self._following = WorkerTasks()
        """Tasks that put a worker to sleep that joined while the others slept."""

    async def change(
        self, action: ControlAction, argument_json: str, timeout_s: float, worker_ids: Sequence[str]
    ) -> Results:
        """Do one of `SLEEP_ACTIONS`; if one worker does not sleep, those that do are woken again.

        Raises:
            InvalidRequestError: the argument is wrong.
            RequestError: as of `control`; or DEADLINE_EXCEEDED, an earlier one has not ended.
        """
        work: Callable[[], Awaitable[Results]]
        if action is ControlAction.SLEEP:
            level = read_sleep_level(argument_json)
            work = partial(self._sleep, argument_json, timeout_s, worker_ids, level)
        else:
            tags = read_wake_up_tags(argument_json)
            work = partial(self._wake_up, argument_json, timeout_s, worker_ids, tags)
        return await self._turns.run(action, timeout_s, work)

    def on_joined(self, worker_id: str) -> None:
        """Have a worker give up what the others did; it gets no request before."""
        if self._fleet.has_to_sleep(worker_id):
            self._following.begin(worker_id, partial(self._follow, worker_id))

    def on_left(self, worker_id: str) -> None:
        self._following.on_left(worker_id)

    def close(self) -> None:
        """Cancel all waits for workers."""
        self._following.close()

    async def _follow(self, worker_id: str) -> None:
        """Try until the worker sleeps as the others do, has left, or the others are awake."""
        while self._fleet.has_to_sleep(worker_id):
            try:
                sleep = partial(self._sleep_as_others, worker_id)
                await self._turns.run(ControlAction.SLEEP, _FOLLOW_TIMEOUT_S, sleep)
                return
            except BatonError as error:
                _log.warning("worker %s does not sleep as the others do: %s", worker_id, error)
                await asyncio.sleep(_FOLLOW_AGAIN_S)

    async def _sleep_as_others(self, worker_id: str) -> None:
        away = self._fleet.away
        steps: list[tuple[ControlAction, dict[str, object]]] = []
        if EnginePart.SCHEDULING in away:
            steps.append((ControlAction.SLEEP, {"level": 0}))
        if away & ENGINE_MEMORY:
            steps.append((ControlAction.SLEEP, {"level": self._level}))
            if back := ENGINE_MEMORY - away:
                steps.append((ControlAction.WAKE_UP, {"tags": sorted(back)}))
        for action, argument in steps:
            control = self._control(action, json.dumps(argument), _FOLLOW_TIMEOUT_S, (worker_id,))
            (result,) = (await control).values()
            if result.code is not None:
                raise RequestError(result.code, result.message)

    async def _wake_up(
        self, argument_json: str, timeout_s: float, worker_ids: Sequence[str], tags: frozenset[EnginePart]
    ) -> Results:
        if not worker_ids:
            self._fleet.set_away(self._fleet.away - tags if tags else frozenset())
        return await self._control(ControlAction.WAKE_UP, argument_json, timeout_s, worker_ids)

    async def _sleep(
        self, argument_json: str, timeout_s: float, worker_ids: Sequence[str], level: int
    ) -> Results:
        """Put workers to sleep; where it fails, those that join sleep only if they had to before."""
        before = self._fleet.away
        if not worker_ids:
            self._fleet.set_away(before | AWAY_AT[level])
        has_slept = False
        try:
            async with self._held_probes() if level else nullcontext():
                results = await self._sleep_all_or_none(argument_json, timeout_s, worker_ids, level)
            has_slept = all(result.code is None for result in results.values())
        finally:
            if not has_slept:
                self._fleet.set_away(before)
        if has_slept and level and not worker_ids:
            self._level = level
        return results

    async def _sleep_all_or_none(
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
