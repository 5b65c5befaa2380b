"""Keeps an engine going when what drafts for it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from baton_core.worker.step_plan import StepPlan, StepResult
from baton_engine.steps.step_pipeline import Launched

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Drafter(Protocol):
    """Drafts for the slices of a step that have an order."""

    def begin(self, plan: StepPlan) -> Callable[[StepResult], StepResult]:
        """Begin to draft behind a step that is launched; what is returned takes the step's result."""
        ...


class DraftGuard:
    """Drafts behind the steps of an engine, until the drafter's first fault."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter: Drafter | None = drafter

    def follow(self, plan: StepPlan, launched: Launched) -> Launched:
        """Return what waits for a step that is launched, and drafts behind it."""
        drafter = self._drafter
        if drafter is None or (draft := self._try(partial(drafter.begin, plan))) is None:
            return launched
        return partial(self._wait, launched, draft)

    def _wait(self, launched: Launched, draft: Callable[[StepResult], StepResult]) -> StepResult:
        result = launched()
        drafted = self._try(partial(draft, result))
        return result if drafted is None else drafted

    def _try(self, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except Exception:
            _log.exception("drafting has failed; nothing is drafted any more")
            self._drafter = None
            return None
