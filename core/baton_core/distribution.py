"""How often a value fell between which bounds: what a histogram of metrics is read from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Distribution:
    """Plain counts, cheap enough for one `add` per token."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """Ascending; each counts what is not above it."""
        self.total = 0.0
        """Sum of all values."""
        self._counts = [0] * (len(bounds) + 1)

    @classmethod
    def of(cls, bounds: Sequence[float], counts: Sequence[int], total: float) -> Distribution:
        """Return a distribution that was counted elsewhere; `counts` has one entry more than `bounds`."""
        distribution = cls(bounds)
        distribution._counts, distribution.total = list(counts), total
        return distribution

    @property
    def counts(self) -> tuple[int, ...]:
        """Values between each bound and the one before it, and those above the last."""
        return tuple(self._counts)

    @property
    def count(self) -> int:
        return sum(self._counts)

    def add(self, value: float, times: int = 1) -> None:
        """Count `value` so many times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, int]]:
        """For each bound as text, and for `+Inf`, how many values are not above it."""
        names = [*map(str, self.bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))
