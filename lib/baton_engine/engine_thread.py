"""The crossing between the loop thread, which plans, and the engine thread, which computes.

One step is in flight at a time. A plan goes in through a queue of one; its result, or the error it ended
with, comes back through the callable that is handed in.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from baton_core.step_plan import StepPlan, StepResult


class EngineThread:
    """Runs `execute` on a thread of its own.

    `deliver` is called on that thread with each result or error and must neither block nor raise.
    """

    def __init__(
        self,
        execute: Callable[[StepPlan], StepResult],
        deliver: Callable[[StepResult | Exception], None],
    ) -> None:
        self._execute = execute
        self._deliver = deliver
        self._plans: queue.Queue[StepPlan | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, plan: StepPlan) -> None:
        """Hand over the next step.

        Raises:
            queue.Full: a step is waiting already.
        """
        self._plans.put_nowait(plan)

    def close(self, timeout_s: float) -> None:
        """End after the step in flight.

        Raises:
            TimeoutError: it is still running after `timeout_s`.
        """
        try:
            self._plans.put(None, timeout=timeout_s)
        except queue.Full:
            raise TimeoutError(f"the engine took no plan for {timeout_s} s") from None
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"a step is still running after {timeout_s} s")

    def _run(self) -> None:
        while (plan := self._plans.get()) is not None:
            try:
                result: StepResult | Exception = self._execute(plan)
            except Exception as error:
                result = error
            self._deliver(result)
