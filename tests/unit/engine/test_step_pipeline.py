"""Steps that are launched before those in front of them are back."""

from __future__ import annotations

from baton_core.worker.step_plan import StepPlan, StepResult
from baton_engine.steps.step_pipeline import Launched, StepPipeline


class Device:
    """Notes what it is asked for, in order; steps 3 and 4 fail, one at its launch and one later."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def launch(self, plan: StepPlan) -> Launched:
        self.asked.append(f"launch {plan.step_id}")
        if plan.step_id == 3:
            raise KeyboardInterrupt

        def wait() -> StepResult:
            self.asked.append(f"wait for {plan.step_id}")
            if plan.step_id == 4:
                raise ValueError("wrong")
            return StepResult(step_id=plan.step_id, sampled=())

        return wait


def plan(step_id: int) -> StepPlan:
    return StepPlan(step_id=step_id, slices=())


def test_the_next_step_is_launched_before_the_first_is_waited_for() -> None:
    device = Device()
    steps = StepPipeline(device.launch)
    assert steps.advance(plan(1), plan(2)) == StepResult(step_id=1, sampled=())
    assert steps.advance(plan(5)) == StepResult(step_id=2, sampled=())
    assert steps.advance() == StepResult(step_id=5, sampled=())
    assert device.asked == ["launch 1", "launch 2", "wait for 1", "launch 5", "wait for 2", "wait for 5"]


def test_what_fails_comes_back_in_its_turn() -> None:
    steps = StepPipeline(Device().launch)
    assert steps.advance(plan(2), plan(3)) == StepResult(step_id=2, sampled=())
    assert isinstance(steps.advance(plan(4)), KeyboardInterrupt)
    assert repr(steps.advance(plan(1))) == "ValueError('wrong')"
    assert steps.advance() == StepResult(step_id=1, sampled=())


def test_the_end_waits_for_all() -> None:
    device = Device()
    steps = StepPipeline(device.launch)
    steps.advance(plan(1), plan(2))
    steps.advance(plan(4), plan(5))
    steps.close()
    assert device.asked[-2:] == ["wait for 4", "wait for 5"]
