"""Sends an operator's controls to workers and waits for their results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Any, Final

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.sessions.control_messages import (
    Control,
    ControlAction,
    ControlResult,
)
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.fleet.role_guard import require_served
from baton_router.operations.adapter_pins import AdapterPins
from baton_router.operations.cache_resets import CacheResets
from baton_router.operations.dispatch_hold import DispatchHold
from baton_router.operations.fleet_sleep import SLEEP_ACTIONS, FleetSleep
from baton_router.operations.turns import Turns
from baton_router.operations.weight_updates import UPDATE_ACTIONS, WeightUpdates

DEFAULT_TIMEOUT_S: Final = 120.0
MAX_TIMEOUT_S: Final = 86_400.0
_GRACE_S: Final = 1.0
"""After the deadline, within which a worker's own, more precise error comes first."""
_CHANGES_OF_ROLES: Final = (ControlAction.SET_ROLE, ControlAction.DRAIN, ControlAction.UNDRAIN)


class _PendingControl:
    """One control and its results."""

    def __init__(self, worker_ids: Iterable[str]) -> None:
        self.results: dict[str, ControlResult | None] = dict.fromkeys(sorted(worker_ids))
        self.is_answered = asyncio.Event()

    def put(self, worker_id: str, result: ControlResult) -> None:
        """Take a worker's result; a second one is ignored."""
        if worker_id in self.results and self.results[worker_id] is None:
            self.results[worker_id] = result
        if None not in self.results.values():
            self.is_answered.set()


class Operations:
    """The operator's controls of one router, on its loop.

    Args:
        fleet: the workers.
        send: hands a worker a message.
        hold: holds requests back that have not begun.
        num_requests: counts those that are open at this router; of those that are held back, none.
        must_split: whether every request needs two workers.
        held_probes: within this block no probe of a transfer is open.
    """

    def __init__(
        self,
        fleet: Fleet,
        send: Callable[[str, Control], None],
        hold: DispatchHold,
        num_requests: Callable[[], int],
        *,
        must_split: bool = False,
        held_probes: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self._workers = fleet.workers
        self._send = send
        self._must_split = must_split
        self._role_turns = Turns("change of roles")
        """Each change is checked against what the one before it has left."""
        self._turns = Turns("sleep, wake_up or weight update")
        self._sleep = FleetSleep(self._control, fleet, num_requests, self._turns, held_probes)
        self._updates = WeightUpdates(self._control, fleet, hold, self._turns)
        self._resets = CacheResets(self._control, hold)
        self._pins = AdapterPins(self._control)
        self._numbers = count(1)
        self._open: dict[int, _PendingControl] = {}

    async def control(
        self,
        action: ControlAction,
        argument_json: str = "{}",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        worker_ids: Sequence[str] = (),
    ) -> dict[str, ControlResult]:
        """Send a control to each worker named, or to all; returns each result or error by worker.

        A worker that leaves meanwhile, or does not answer in time, gets an error. The caller may go away:
        the workers still do it. If one does not sleep, those that do are woken again; pins are undone too.

        Raises:
            InvalidRequestError: the argument is no JSON object, or too long; or it is one of a change after
                which no worker would be left that prefills, or decodes.
            RequestError: NOT_FOUND, no worker has that name; UNAVAILABLE, none is registered;
                DEADLINE_EXCEEDED, an earlier change of roles, or reset, has not ended.
        """
        _require_object(argument_json)
        if action in SLEEP_ACTIONS:
            return await self._sleep.change(action, argument_json, timeout_s, worker_ids)
        if action in UPDATE_ACTIONS:
            return await self._updates.step(action, argument_json, timeout_s, worker_ids)
        if action is ControlAction.RESET_PREFIX_CACHE:
            return await self._resets.reset(argument_json, timeout_s, worker_ids)
        if action is ControlAction.PIN_ADAPTERS:
            return await self._pins.pin(argument_json, timeout_s, worker_ids)
        work = partial(self._control, action, argument_json, timeout_s, worker_ids)
        if action not in _CHANGES_OF_ROLES:
            return await work()
        return await self._role_turns.run(action, timeout_s, work)

    def on_result(self, worker_id: str, result: ControlResult) -> None:
        """Take a result; one without a waiting control is dropped."""
        if (pending := self._open.get(result.control_id)) is not None:
            pending.put(worker_id, result)

    def on_joined(self, worker_id: str) -> None:
        """Bring a worker to the weights that are served, to what is pinned, and to sleep if the others do."""
        self._pins.on_joined(worker_id)
        self._updates.on_joined(worker_id)
        self._sleep.on_joined(worker_id)

    def close(self) -> None:
        """Cancel what runs or waits for its turn."""
        self._updates.close()
        self._resets.close()
        self._pins.close()
        self._sleep.close()
        self._turns.close()
        self._role_turns.close()

    def on_left(self, worker_id: str, reason: str) -> None:
        """Fail the results of a worker whose session is over."""
        self._updates.on_left(worker_id)
        self._sleep.on_left(worker_id)
        self._pins.on_left(worker_id)
        for control_id, pending in self._open.items():
            pending.put(
                worker_id, _failed(control_id, ErrorCode.WORKER_LOST, f"the worker was lost: {reason}")
            )

    async def _control(
        self, action: ControlAction, argument_json: str, timeout_s: float, worker_ids: Sequence[str]
    ) -> dict[str, ControlResult]:
        workers = self._workers()
        pending = _PendingControl(_chosen(worker_ids, [info.worker_id for info, _ in workers]))
        if not pending.results:
            raise RequestError(ErrorCode.UNAVAILABLE, f"{action} reaches no worker: none is registered")
        require_served(action, argument_json, pending.results, workers, must_split=self._must_split)
        control_id = next(self._numbers)
        self._open[control_id] = pending
        control = Control(
            control_id=control_id, action=action, argument_json=argument_json, timeout_s=timeout_s
        )
        try:
            for worker_id in pending.results:
                self._send(worker_id, control)
            async with asyncio.timeout(timeout_s + _GRACE_S):
                await pending.is_answered.wait()
        except TimeoutError:
            text = f"no answer to {action} within {timeout_s:g} s"
            for worker_id in pending.results:
                pending.put(worker_id, _failed(control_id, ErrorCode.DEADLINE_EXCEEDED, text))
        finally:
            del self._open[control_id]
        return {worker_id: result for worker_id, result in pending.results.items() if result is not None}


def read_results(results: Mapping[str, ControlResult]) -> list[Any]:
    """Return the workers' results, in the order of their names.

    Raises:
        RequestError: the error of the first that could not do it; the message names the worker.
    """
    for worker_id, result in results.items():
        if result.code is not None:
            raise RequestError(result.code, f"worker {worker_id}: {result.message}")
    return [json.loads(result.result_json) for result in results.values()]


def checked_timeout(field: str, timeout_s: float) -> float:
    """Refuse a timeout that is not positive, or too long.

    Raises:
        InvalidRequestError: names the field.
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequestError(field, timeout_s, f"seconds, over 0 and up to {MAX_TIMEOUT_S:g}")
    return timeout_s


def _chosen(worker_ids: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    for worker_id in worker_ids:
        if worker_id not in known:
            allowed = ", ".join(sorted(known)) or "none, as no worker is registered"
            raise RequestError(ErrorCode.NOT_FOUND, f"worker_ids has {worker_id!r}; allowed: {allowed}")
    return worker_ids or known


def _failed(control_id: int, code: ErrorCode, message: str) -> ControlResult:
    return ControlResult(control_id=control_id, code=code, message=message)


def _require_object(argument_json: str) -> None:
    try:
        is_object = isinstance(json.loads(argument_json), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise InvalidRequestError("argument", argument_json, "a JSON object")
