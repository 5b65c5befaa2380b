"""Counts of the events in runs: a simulation that meets no faults shows nothing."""

from __future__ import annotations

from collections import Counter


class Coverage:
    """Counts by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        if count:
            self.counts[name] += count
