"""A router's counts of its HTTP calls, under the names of prometheus-fastapi-instrumentator.

Labels are bounded: a handler is a route's pattern, and one name stands for all paths that have no route; an
object of ignored fields is one that a route knows.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from baton_core.distribution import Distribution
from baton_service.exposition import Exposition, counter, histogram

NO_HANDLER: Final = "none"
"""Handler of calls that no route takes, and method of those that have none of `METHODS`."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUESTS: Final = counter(
    "http_requests", "HTTP calls by route, method and class of status", "handler", "method", "status"
)
DURATION: Final = histogram(
    "http_request_duration_seconds",
    "From the headers of an HTTP call to the end of its answer",
    "handler",
    "method",
)
IGNORED: Final = counter(
    "baton_http_ignored_fields",
    "Bodies with fields that are unknown and ignored, by the object that had them",
    "object",
)
FAMILIES: Final = (REQUESTS, DURATION, IGNORED)
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class HttpMetrics:
    """Counts one router's HTTP calls, on its loop."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[tuple[str, str], Distribution] = {}
        self._ignored: Counter[str] = Counter()

    def on_answered(self, handler: str, method: str, status: int, duration_s: float) -> None:
        """Count a call that is over; `handler` is a route's pattern, or empty."""
        labels = (handler or NO_HANDLER, method if method in METHODS else NO_HANDLER)
        self._counts[*labels, f"{status // 100}xx"] += 1
        if labels not in self._durations:
            self._durations[labels] = Distribution(_BOUNDS)
        self._durations[labels].add(duration_s)

    def on_ignored(self, place: str) -> None:
        """Count a body with unknown fields in a known object; empty is the body itself, or the query."""
        self._ignored[place or "body"] += 1

    def report(self, page: Exposition) -> None:
        """Add all samples to a scrape."""
        for key, count in self._counts.items():
            page.add(REQUESTS, count, *key)
        for labels, durations in self._durations.items():
            page.add(DURATION, durations, *labels)
        for place, count in self._ignored.items():
            page.add(IGNORED, count, place)
