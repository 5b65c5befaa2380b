"""Percentiles of many latencies in bounded memory: values are counted in logarithmic buckets.

Source: C. Masson, J. E. Rim, H. K. Lee, "DDSketch: a fast and fully-mergeable quantile sketch", VLDB 2019.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

RELATIVE_ERROR: Final = 0.01
"""A percentile is this far from its exact value at most, as a share of that value."""
MIN_VALUE: Final = 1e-6
MAX_VALUE: Final = 1e6
"""Values outside of these two count as the nearer one."""
_GROWTH: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH: Final = math.log(_GROWTH)
MAX_BUCKETS: Final = math.ceil((math.log(MAX_VALUE) - math.log(MIN_VALUE)) / _LOG_GROWTH) + 2
_ROUNDING: Final = 1e-9


class QuantileSketch:
    """Counts of values by bucket; one `add` costs a logarithm."""

    __slots__ = ("_counts", "count")

    def __init__(self, counts: Mapping[int, int] = MappingProxyType({})) -> None:
        self._counts: Counter[int] = Counter(counts)
        self.count = self._counts.total()
        """Values in all."""

    @property
    def counts(self) -> dict[int, int]:
        """Counts by bucket, of which another process makes the same sketch."""
        return dict(self._counts)

    @property
    def num_buckets(self) -> int:
        """Buckets in use, at most `MAX_BUCKETS`."""
        return len(self._counts)

    def add(self, value: float, times: int = 1) -> None:
        """Count `value` so many times."""
        if not MIN_VALUE <= value <= MAX_VALUE:
            value = MIN_VALUE if value < MIN_VALUE else MAX_VALUE
        bucket = math.ceil(math.log(value) / _LOG_GROWTH)
        self._counts[bucket] += times
        self.count += times

    def merge(self, other: QuantileSketch) -> None:
        """Count all values of `other` too."""
        self._counts.update(other._counts)
        self.count += other.count

    def remove(self, other: QuantileSketch) -> None:
        """Count the values of `other`, which were merged before, no longer."""
        self._counts -= other._counts
        self.count -= other.count

    def quantile(self, share: float) -> float | None:
        """The value that this share of all values does not exceed (nearest rank); None without values."""
        rank = max(1, math.ceil(share * self.count - _ROUNDING))
        num_seen = 0
        for bucket, count in sorted(self._counts.items()):
            num_seen += count
            if num_seen >= rank:
                return 2 * _GROWTH**bucket / (_GROWTH + 1)
        return None
