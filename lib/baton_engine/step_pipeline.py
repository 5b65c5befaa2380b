"""Steps on their way through an engine: launched in order, and taken back in that order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

from baton_core.worker.step_plan import StepPlan, StepResult

Launched: TypeAlias = Callable[[], StepResult]
"""Waits for a step that is launched, and returns what it gave or raises what it ended with."""
T = TypeVar("T")


class StepPipeline:
    """Of one engine, used by one thread. A device computes a step while the one before it is taken back."""

    def __init__(self, launch: Callable[[StepPlan], Launched]) -> None:
        self._launch = launch
        self._launched: deque[Launched | BaseException] = deque()

    def go_on(self, *plans: StepPlan) -> StepResult | BaseException:
        """Launch steps behind those before them, then wait for the first one that is not back.

        Returns its result or what it raised; one that cannot be launched comes back in its turn.
        """
        for plan in plans:
            self._launched.append(_attempt(partial(self._launch, plan)))
        first = self._launched.popleft()
        return first if isinstance(first, BaseException) else _attempt(first)

    def close(self) -> None:
        """Wait for all."""
        while self._launched:
            self.go_on()


def _attempt(call: Callable[[], T]) -> T | BaseException:
    try:
        return call()
    except BaseException as error:  # a panic, or a request's function that exits, ends the step alone
        return error
