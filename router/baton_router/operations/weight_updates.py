"""Brings a new version of the weights to all workers, so that no request has tokens of two versions.

The order: every worker checks the new files while the old version serves; then requests that have not begun
wait, those that have begun end, every worker switches, and the requests go on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final, TypeAlias

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_core.sessions.control_messages import UPDATE_TIMEOUT_S, ControlAction, ControlResult
from baton_core.sessions.status_arguments import read_argument
from baton_core.sessions.weight_arguments import (
    CheckWeightsArgument,
    FinishWeightUpdateArgument,
    StartWeightUpdateArgument,
    require_checkpoint_format,
)
from baton_core.weight_update import WeightUpdate, WeightVersion
from baton_router.core.fleet.fleet import Fleet
from baton_router.operations.dispatch_hold import DispatchHold
from baton_router.operations.turns import Turns
from baton_router.operations.worker_tasks import WorkerTasks

Results: TypeAlias = dict[str, ControlResult]
ControlWorkers: TypeAlias = Callable[[ControlAction, str, float, Sequence[str]], Awaitable[Results]]
UPDATE_ACTIONS: Final = (
    ControlAction.START_WEIGHT_UPDATE,
    ControlAction.UPDATE_WEIGHTS,
    ControlAction.FINISH_WEIGHT_UPDATE,
)
_REASON: Final = "the weights are being switched"
_BRING_AGAIN_S: Final = 30.0
_OUTDATED: Final = "it gets no request until it has the weights that are served"
_log = logging.getLogger(__name__)


class WeightUpdates:
    """The updates of one router's workers, on its loop.

    Args:
        control: sends a control to the workers named, or to all; returns their results by name.
        turns: shared with other operations that must not meet an update.
    """

    def __init__(self, control: ControlWorkers, fleet: Fleet, hold: DispatchHold, turns: Turns) -> None:
        self._control = control
        self._fleet = fleet
        self._hold = hold
        self._turns = turns
        self._update = WeightUpdate()
        self._bringing = WorkerTasks()
        """Tasks that have a worker load the version that is served."""

    async def step(
        self, action: ControlAction, argument_json: str, timeout_s: float, worker_ids: Sequence[str]
    ) -> Results:
        """Take one of `UPDATE_ACTIONS`; returns the workers' hashes of the weights.

        Raises:
            InvalidRequestError: the argument is wrong, or workers are named: all have the same weights.
            RequestError: INVALID_REQUEST, an earlier step is missing; OVERLOADED, paused requests cannot end;
                DEADLINE_EXCEEDED, running requests have not ended: the old version serves on.
        """
        if worker_ids:
            raise InvalidRequestError("worker_ids", list(worker_ids), "none: all get the same weights")
        match action:
            case ControlAction.START_WEIGHT_UPDATE:
                argument = read_argument(argument_json, StartWeightUpdateArgument)
                require_checkpoint_format(argument.is_checkpoint_format)
                self._update.start()
                return {}
            case ControlAction.UPDATE_WEIGHTS:
                path = read_argument(argument_json, CheckWeightsArgument).path
                return await self._turns.run(action, timeout_s, partial(self._check, path, timeout_s))
            case _:
                read_argument(argument_json, FinishWeightUpdateArgument)
                return await self._turns.run(action, timeout_s, partial(self._finish, timeout_s))

    def on_joined(self, worker_id: str) -> None:
        """Have a worker with other weights load those that are served."""
        if self._fleet.version is None or self._fleet.has_served_weights(worker_id):
            return
        self._bringing.begin(worker_id, partial(self._bring, worker_id))

    def on_left(self, worker_id: str) -> None:
        self._bringing.on_left(worker_id)

    def close(self) -> None:
        """Cancel all waits for workers."""
        self._bringing.close()

    async def _check(self, path: str, timeout_s: float) -> Results:
        self._update.require_open()
        self._update.start()  # what was staged before gives way, fit or not
        argument = json.dumps({"path": path})
        results = await self._control(ControlAction.CHECK_WEIGHTS, argument, timeout_s, ())
        if all(result.code is None for result in results.values()):
            hashes = {name: json.loads(result.result_json) for name, result in results.items()}
            self._update.stage(path, hashes)
        return results

    async def _finish(self, timeout_s: float) -> Results:
        version = self._update.staged
        if self._hold.num_begun and any(load.is_paused for _, load in self._fleet.workers()):
            text = f"{self._hold.num_begun} requests are paused midway and would mix two versions"
            allowed = "/resume or /wake_up first, or /pause with mode wait or abort"
            raise RequestError(ErrorCode.OVERLOADED, f"{text}; allowed: {allowed}")
        ends_s = asyncio.get_running_loop().time() + timeout_s
        self._hold.hold(_REASON)
        try:
            await self._hold.wait_idle(timeout_s)
            left_s = max(0.1, ends_s - asyncio.get_running_loop().time())
            results = await self._switch(version, left_s)
        finally:
            self._hold.release(_REASON)
        for name in results:
            self.on_joined(name)
        return results

    async def _switch(self, version: WeightVersion, timeout_s: float) -> Results:
        argument = json.dumps(asdict(version))
        results = await self._control(ControlAction.SWITCH_WEIGHTS, argument, timeout_s, ())
        if all(result.code is not None for result in results.values()):
            return results
        self._fleet.set_version(version)
        self._update.finish()
        _log.info("weights %s of %s are served", version.weights, version.path)
        return {
            name: result if result.code is None else replace(result, message=f"{result.message}; {_OUTDATED}")
            for name, result in results.items()
        }

    async def _bring(self, worker_id: str) -> None:
        """Try until the worker has the weights that are served, or has left."""
        while (version := self._fleet.version) and not self._fleet.has_served_weights(worker_id):
            _log.info("worker %s is to load weights %s of %s", worker_id, version.weights, version.path)
            try:
                switch = partial(self._switch_one, version, worker_id)
                await self._turns.run(ControlAction.SWITCH_WEIGHTS, UPDATE_TIMEOUT_S, switch)
            except BatonError as error:
                _log.warning("worker %s keeps its weights: %s; %s", worker_id, error, _OUTDATED)
                await asyncio.sleep(_BRING_AGAIN_S)

    async def _switch_one(self, version: WeightVersion, worker_id: str) -> None:
        argument = json.dumps(asdict(version))
        control = self._control(ControlAction.SWITCH_WEIGHTS, argument, UPDATE_TIMEOUT_S, (worker_id,))
        (result,) = (await control).values()
        if result.code is not None:
            raise RequestError(result.code, result.message)
