"""In-flight steps of an engine: launched in order, and awaited in that order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

from baton_core.worker.step_plan import StepPlan, StepResult

Launched: TypeAlias = Callable[[], StepResult]
"""Waits for a step that is launched; returns its result or raises its error."""
T = TypeVar("T")


class StepPipeline:
    """The steps of one engine, used by one thread: one is computed while the result of another is read."""

    def __init__(self, launch: Callable[[StepPlan], Launched]) -> None:
        self._launch = launch
        self._launched: deque[Launched | StepResult | BaseException] = deque()

    def advance(self, *plans: StepPlan) -> StepResult | BaseException:
        """Launch steps behind those before them, then wait for the first one that is not back.

        Returns its result or what it raised; one that cannot be launched comes back in its turn.
        """
        for plan in plans:
            self._launched.append(_attempt(partial(self._launch, plan)))
        return _outcome(self._launched.popleft())

    def wait(self) -> None:
        """Wait for all steps; each comes back in its turn all the same."""
        self._launched = deque(map(_outcome, self._launched))

    def close(self) -> None:
        """Wait for all steps, which do not come back."""
        self.wait()
        self._launched.clear()


def _outcome(step: Launched | StepResult | BaseException) -> StepResult | BaseException:
    return step if isinstance(step, StepResult | BaseException) else _attempt(step)


def _attempt(call: Callable[[], T]) -> T | BaseException:
    try:
        return call()
    except BaseException as error:  # a panic, or a request's function that exits, ends the step alone
        return error
