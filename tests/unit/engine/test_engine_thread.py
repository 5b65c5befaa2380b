"""The thread that computes steps outlives whatever they raise."""

from __future__ import annotations

import queue

from baton_core.worker.step_plan import StepPlan, StepResult
from baton_engine.steps.engine_thread import EngineThread
from baton_engine.steps.step_pipeline import Launched


def test_a_step_that_exits_is_a_step_that_fails() -> None:
    def launch(plan: StepPlan) -> Launched:
        match plan.step_id:
            case 1:
                raise ValueError("wrong")
            case 2:
                raise SystemExit("of a request's function")
        return lambda: StepResult(step_id=plan.step_id, sampled=())

    done: queue.Queue[StepResult | Exception] = queue.Queue()
    engine = EngineThread(launch, done.put)
    engine.start()
    results = []
    for step_id in (1, 2, 3):
        engine.submit(StepPlan(step_id=step_id, slices=()))
        results.append(done.get(timeout=10))
    engine.close(10)
    assert [repr(error) for error in results[:2]] == [
        "ValueError('wrong')",
        'RuntimeError("SystemExit: of a request\'s function")',
    ]
    assert results[2] == StepResult(step_id=3, sampled=())
