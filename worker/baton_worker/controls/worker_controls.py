"""Answers the controls that a worker's core lets run. On the engine thread, between two steps."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError
from baton_core.worker.worker_events import ControlDone, RunControl
from baton_worker.controls.control_wire import decode_control, encode_result
from baton_worker.controls.engine_controls import EngineControls
from baton_worker.controls.engine_operations import ApplyModel, CallWorker, EngineOperation
from baton_worker.engine.resident_engine import RELOAD_WEIGHTS, ResidentEngine

_log = logging.getLogger(__name__)


class WorkerControls:
    """The controls of one worker.

    Args:
        allows_functions: whether whoever asks may have functions called by their names.
    """

    def __init__(
        self, engine: ResidentEngine, *, allows_functions: bool = False, profiler_folder: str = ""
    ) -> None:
        self._engine = engine
        self._controls = EngineControls(engine, profiler_folder=profiler_folder)
        self._allows_functions = allows_functions

    def answer(self, asked: RunControl) -> ControlDone:
        """Do it, or say why not."""
        began = time.monotonic()
        result, code, message = "null", None, ""
        try:
            result = encode_result(self._run(_command(asked)))
        except BatonError as error:
            code, message = error.code, str(error)
        except Exception as error:
            _log.error("%s failed", asked.action, exc_info=error)
            code, message = ErrorCode.INTERNAL, f"{asked.action} failed: {type(error).__name__}: {error}"
        else:
            _log.info("%s done in %.3f s", asked.action, time.monotonic() - began)
        return ControlDone(
            run_id=asked.run_id,
            result_json=result,
            code=code,
            message=message,
            away=self._engine.away,
            weights=self._engine.weights,
        )

    def _run(self, command: EngineOperation) -> object:
        if not self._allows_functions:
            _refuse_functions(command)
        answers = self._controls.run_on_ranks(command)
        return answers if len(answers) > 1 else answers[0]


def _command(asked: RunControl) -> EngineOperation:
    command = decode_control(asked.action, asked.argument_json)
    if isinstance(command, CallWorker | ApplyModel):
        return replace(command, timeout_s=asked.timeout_s)
    return command


def _refuse_functions(command: EngineOperation) -> None:
    allowed = "none: this worker runs without --allow-functions"
    match command:
        case ApplyModel(function=function):
            raise InvalidRequestError("func", function, allowed)
        case CallWorker(method=method) if method != RELOAD_WEIGHTS:
            raise InvalidRequestError("method", method, allowed)
