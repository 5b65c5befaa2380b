"""Keeps an engine going when what drafts for it fails."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from baton_core.worker.step_plan import StepPlan, StepResult
from baton_engine.steps.step_pipeline import Launched

_log = logging.getLogger(__name__)


class Drafter(Protocol):
    """Drafts for the slices of a step that have an order."""

    def draft(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Return the result of the step that was computed last with the drafts that its plan orders."""
        ...


class DraftGuard:
    """Drafts behind the steps of an engine, until the drafter's first fault."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter: Drafter | None = drafter

    def follow(self, plan: StepPlan, launched: Launched) -> Launched:
        """Return what waits for a step that is launched, and drafts behind it."""
        return launched if self._drafter is None else partial(self._wait, plan, launched)

    def _wait(self, plan: StepPlan, launched: Launched) -> StepResult:
        result = launched()
        try:
            return result if self._drafter is None else self._drafter.draft(plan, result)
        except Exception:
            _log.exception("drafting has failed; nothing is drafted any more")
            self._drafter = None
            return result
