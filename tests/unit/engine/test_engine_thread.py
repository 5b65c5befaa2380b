"""The thread that computes steps outlives whatever they raise."""

from __future__ import annotations

import queue
import threading
import time

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


def test_a_step_that_comes_back_at_the_end_may_ask_for_more() -> None:
    begun, finish, returned = threading.Event(), threading.Event(), threading.Event()

    def launch(plan: StepPlan) -> Launched:
        begun.set()
        finish.wait(10)
        return lambda: StepResult(step_id=plan.step_id, sampled=())

    def deliver(result: StepResult | Exception) -> None:
        engine.submit(StepPlan(step_id=2, slices=()))
        engine.run(lambda: None)
        returned.set()

    engine = EngineThread(launch, deliver)
    engine.start()
    engine.submit(StepPlan(step_id=1, slices=()))
    assert begun.wait(10)
    closing = threading.Thread(target=engine.close, args=(10,))
    closing.start()
    deadline_s = time.monotonic() + 10
    while not engine._jobs.full():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    finish.set()
    assert returned.wait(10)
    closing.join(10)
    assert not closing.is_alive()
