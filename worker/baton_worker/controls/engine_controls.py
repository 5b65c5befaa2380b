"""Does what operators ask of one engine, in its process, on the thread that computes.

Shared by the cluster in this process and by workers.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from typing import Any, assert_never

from baton_core.errors import InvalidRequestError
from baton_engine.models.module_view import module_view
from baton_worker.controls.control_wire import encode_control, encode_result
from baton_worker.controls.dotted_names import resolve_function
from baton_worker.controls.engine_operations import (
    ApplyModel,
    CallWorker,
    CheckAdapter,
    CheckWeights,
    EngineOperation,
    Profile,
    Sleep,
    SwitchWeights,
    WakeUp,
)
from baton_worker.controls.profiler import Profiler
from baton_worker.engine.resident_engine import RELOAD_WEIGHTS, ResidentEngine
from baton_worker.ranks.rank_group import ANSWER_WITHIN_S, RankGroup


class EngineControls:
    """The controls of one engine. Requests wait while a step is computed.

    Args:
        profiler_folder: where traces go of which nothing else is said.
    """

    def __init__(self, engine: ResidentEngine, *, profiler_folder: str = "") -> None:
        self._engine = engine
        self._profiler = Profiler(engine.place)
        self._profiler_folder = profiler_folder

    def run_on_ranks(self, command: EngineOperation) -> list[Any]:
        """Do it at every rank of the engine's group.

        Returns what a function that was asked for returned at each rank, or else the leader's answer alone.
        Answers of several ranks are as JSON has them.

        The group ends if some have changed what is in memory and others could not, or if the leader is
        interrupted: they would go on apart. So it does if a rank has not answered within `ANSWER_WITHIN_S`;
        functions that are called may take as long as the caller waits, if that is longer.

        Raises:
            Exception: as `run`, at any of them.
        """
        group = self._engine.group
        if group is None or isinstance(command, CheckWeights | CheckAdapter):
            return [self.run(command)]
        answers = group.call(*encode_control(command), _within_s(command))
        try:
            with group.loading() if isinstance(command, WakeUp | SwitchWeights) else nullcontext():
                own = self._own_answer(group, command)
                others = answers()
        except BaseException as error:
            group.end(f"the leader of the model's ranks did not end {type(command).__name__}: {error!r}")
            raise
        all_answers = [own, *others]
        errors = [one for one in all_answers if isinstance(one, Exception)]
        if errors:
            if isinstance(command, Sleep | WakeUp | SwitchWeights) and len(errors) < len(all_answers):
                group.end(f"not all of the model's ranks could {type(command).__name__}: {errors[0]}")
            raise errors[0]
        return group.in_order(own, others) if isinstance(command, ApplyModel | CallWorker) else [own]

    def _own_answer(self, group: RankGroup, command: EngineOperation) -> Any:
        """Return the leader's answer as other ranks give theirs: what JSON makes of it, or the error."""
        try:
            with group.explaining():
                return json.loads(encode_result(self.run(command)))
        except Exception as error:
            return error

    def run(self, command: EngineOperation) -> Any:
        """Do it in this process; returns the answer.

        Raises:
            BatonError: it cannot be done, or the engine sleeps.
            Exception: whatever a function raises that was asked for.
        """
        match command:
            case Sleep(level=level):
                return self._engine.sleep(level)
            case WakeUp(tags=tags):
                self._engine.wake_up(tags)
                return self._engine.is_sleeping
            case ApplyModel(function=function):
                loaded = self._engine.loaded
                model = module_view(loaded.runner.model, loaded.config.architecture)
                return resolve_function("func", function)(model)
            case CallWorker():
                return self._call(command)
            case Profile(is_start=True, folder=folder, prefix=prefix):
                return self._profiler.start(folder or self._profiler_folder, prefix)
            case Profile():
                return self._profiler.stop()
            case CheckAdapter(path=path, digest=digest):
                return self._engine.check_adapter(path, digest)
            case CheckWeights(path=path):
                return self._engine.check_weights(path)
            case SwitchWeights(path=path, weights=weights):
                self._engine.switch_weights(path, weights)
                return self._engine.weights
        assert_never(command)

    def _call(self, command: CallWorker) -> Any:
        if command.method == RELOAD_WEIGHTS and not (command.args or command.kwargs):
            return self._engine.require_read_again()
        runner, method = self._engine.loaded.runner, command.method
        if isinstance(method, str) and ":" not in method:
            found = getattr(runner, method, None)
            if not callable(found):
                allowed = "a method of the runner, or a function such as package.module:function"
                raise InvalidRequestError("method", method, allowed)
            return found(*command.args, **command.kwargs)
        return resolve_function("method", method)(runner, *command.args, **command.kwargs)


def _within_s(command: EngineOperation) -> float:
    """Return the time that each rank has for its answer."""
    match command:
        case CallWorker(timeout_s=float() | int() as timeout_s) | ApplyModel(timeout_s=float() as timeout_s):
            return max(ANSWER_WITHIN_S, timeout_s)
        case CallWorker() | ApplyModel():
            return math.inf
        case _:
            return ANSWER_WITHIN_S
