"""A router's counts of what it has picked for gateways."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from baton_core.distribution import Distribution
from baton_service.exposition import Exposition, counter, histogram

PICKS: Final = counter(
    "baton_picks", "Requests that a gateway has asked this endpoint picker about, by what it got", "outcome"
)
DURATION: Final = histogram(
    "baton_pick_duration_seconds", "From the whole body of a gateway's request to its pick"
)
FAMILIES: Final = (PICKS, DURATION)
_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class PickOutcome(StrEnum):
    """The answers to a gateway's request."""

    WORKERS = "workers"
    """A router, and the workers that are to compute it."""
    ROUTER = "router"
    """A router that chooses the workers itself."""
    WAITING = "waiting"
    """A router in whose queue it waits, as no worker has room."""
    REFUSED = "refused"
    """An error in the place of a router's."""


class PickMetrics:
    """Counts one router's picks, on its loop."""

    def __init__(self) -> None:
        self._counts = Counter[PickOutcome]()
        self._durations = Distribution(_BOUNDS)

    def on_picked(self, outcome: PickOutcome, duration_s: float) -> None:
        """Count a pick."""
        self._counts[outcome] += 1
        self._durations.add(duration_s)

    def report(self, page: Exposition) -> None:
        """Add all samples to a scrape; none where no gateway has asked."""
        if not self._counts:
            return
        for outcome in PickOutcome:
            page.add(PICKS, self._counts[outcome], outcome)
        page.add(DURATION, self._durations)
