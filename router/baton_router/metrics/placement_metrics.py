"""Metrics of placement: decisions, queue waits, and errors of predicted TTFT."""

from __future__ import annotations

from collections import Counter
from typing import Final

from baton_core.distribution import Distribution
from baton_core.requests.phases import PhaseName
from baton_router.core.flow.request_record import RequestRecord
from baton_router.core.placement.placement_record import Decision
from baton_service.exposition import Exposition, counter, histogram

PLACEMENTS: Final = counter(
    "baton_placements",
    "Decisions by policy, and by what came of them: split, local, or refused for want of a place",
    "policy",
    "kind",
)
TTFT_ERROR: Final = histogram(
    "baton_ttft_prediction_error_seconds",
    "Time to the first token, less what was predicted when the request was placed",
    "policy",
)
QUEUE_WAIT: Final = histogram(
    "baton_queue_wait_seconds", "How long a request waited at the router for workers, all its waits together"
)
FAMILIES: Final = (PLACEMENTS, TTFT_ERROR, QUEUE_WAIT)
_WAIT_BOUNDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)
_LATE_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ERROR_BOUNDS: Final = (*(-late_s for late_s in reversed(_LATE_S)), 0.0, *_LATE_S)


class PlacementMetrics:
    """Placement metrics of one router, updated at the end of each request."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """Decisions by policy and by what came of them."""
        self._errors: dict[str, Distribution] = {}
        self._waits = Distribution(_WAIT_BOUNDS)

    def on_ended(self, record: RequestRecord) -> None:
        """Count the decisions of a request; the last one is what its first token is held against."""
        for decision in record.decisions:
            self.counts[decision.policy, kind_of(decision)] += 1
        waits = [phase for phase in record.phases if phase.name is PhaseName.ADMIT]
        waited_s = sum(phase.end_s - phase.start_s for phase in waits)
        if record.num_placings or waited_s > 0:  # one that was refused as it came has not waited
            self._waits.add(waited_s)
        if record.decisions and record.first_token_s is not None:
            self._note_error(record.decisions[-1], record.first_token_s)

    def report(self, page: Exposition) -> None:
        """Add all samples to a scrape."""
        for (policy, kind), count in sorted(self.counts.items()):
            page.add(PLACEMENTS, count, policy, kind)
        for policy, errors in self._errors.items():
            page.add(TTFT_ERROR, errors, policy)
        page.add(QUEUE_WAIT, self._waits)

    def _note_error(self, decision: Decision, first_token_s: float) -> None:
        chosen = decision.chosen
        if chosen is None or chosen.cost.ttft_s <= 0 or first_token_s < decision.at_s:
            return
        errors = self._errors.setdefault(decision.policy, Distribution(_ERROR_BOUNDS))
        errors.add(first_token_s - decision.at_s - chosen.cost.ttft_s)


def kind_of(decision: Decision) -> str:
    """Return the outcome of a decision in one word."""
    if decision.chosen is None:
        return "refused"
    return "local" if decision.chosen.prefill == decision.chosen.decode else "split"
