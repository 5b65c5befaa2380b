"""The crossing between the loop thread, which plans, and the engine thread, which computes.

One job is in flight at a time: to advance the steps, or a task. It goes in through a queue of one; a step's
result, or the error it ended with, comes back through the callable that is handed in.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from baton_core.worker.step_plan import StepPlan, StepResult
from baton_engine.steps.step_pipeline import Launched, StepPipeline


class EngineThread:
    """Runs `launch`, and what it returns, on a thread of its own.

    `deliver` is called on that thread with each result or error and must neither block nor raise.
    """

    def __init__(
        self,
        launch: Callable[[StepPlan], Launched],
        deliver: Callable[[StepResult | Exception], None],
    ) -> None:
        self._steps = StepPipeline(launch)
        self._deliver = deliver
        self._jobs: queue.Queue[tuple[StepPlan, ...] | Callable[[], None] | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._is_ending = False

    def start(self) -> None:
        self._thread.start()

    def submit(self, *plans: StepPlan) -> None:
        """Have these steps launched, if any, and the first one that is not back delivered.

        Raises:
            queue.Full: a job is waiting already.
        """
        self._hand_over(plans)

    def run(self, task: Callable[[], None]) -> None:
        """Hand over something else to do, which must not raise and tells of its end itself.

        Raises:
            queue.Full: a job is waiting already.
        """
        self._hand_over(task)

    def _hand_over(self, job: tuple[StepPlan, ...] | Callable[[], None]) -> None:
        if not self._is_ending:  # a step that comes back at the end asks for more
            self._jobs.put_nowait(job)

    def close(self, timeout_s: float) -> None:
        """End after the steps in flight; what is handed over from now on is not done.

        Raises:
            TimeoutError: one is still running after `timeout_s`.
        """
        self._is_ending = True
        try:
            self._jobs.put(None, timeout=timeout_s)
        except queue.Full:
            raise TimeoutError(f"the engine took no plan for {timeout_s} s") from None
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"a step is still running after {timeout_s} s")

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, tuple):
                self._deliver(self._advance(job))
            else:
                job()
        self._steps.close()

    def _advance(self, plans: tuple[StepPlan, ...]) -> StepResult | Exception:
        outcome = self._steps.advance(*plans)
        if isinstance(outcome, StepResult | Exception):
            return outcome
        return RuntimeError(f"{type(outcome).__name__}: {outcome}")
