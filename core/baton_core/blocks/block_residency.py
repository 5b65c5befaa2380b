"""How long KV blocks keep a content and how often it is used, for metrics: of a sample of the blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_core.distribution import Distribution

RESIDENCY_BOUNDS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)
"""vLLM's, in seconds."""
_GOLDEN_RATIO: Final = 0.6180339887498949


@dataclass(slots=True)
class _Stay:
    """One sampled block's content, since the block was allocated."""

    allocated_s: float
    last_access_s: float
    is_accessed: bool = False


class BlockResidency:
    """Observer of one block pool; the same calls have the same blocks sampled.

    An access is a sequence that finds the content and takes it; an eviction makes room for another one.
    """

    def __init__(self, share: float) -> None:
        self.lifetimes = Distribution(RESIDENCY_BOUNDS)
        """Seconds from a block's allocation to its eviction."""
        self.idle_times = Distribution(RESIDENCY_BOUNDS)
        """Seconds from its last access, or its allocation, to its eviction."""
        self.reuse_gaps = Distribution(RESIDENCY_BOUNDS)
        """Seconds between two accesses."""
        self._share = share
        self._draw = 0.0
        """Spread evenly over 0 to 1, whatever the period in which requests allocate their blocks."""
        self._stays: dict[int, _Stay] = {}

    @property
    def distributions(self) -> tuple[Distribution, Distribution, Distribution]:
        """All that is measured: lifetimes, idle times and reuse gaps."""
        return self.lifetimes, self.idle_times, self.reuse_gaps

    def on_allocated(self, block_id: int, now: float) -> None:
        """Choose whether this stay is sampled; one before it that was not evicted is dropped."""
        self._draw = (self._draw + _GOLDEN_RATIO) % 1.0
        if self._draw < self._share:
            self._stays[block_id] = _Stay(now, now)
        else:
            self._stays.pop(block_id, None)

    def on_accessed(self, block_id: int, now: float) -> None:
        if (stay := self._stays.get(block_id)) is None:
            return
        if stay.is_accessed:
            self.reuse_gaps.add(now - stay.last_access_s)
        stay.last_access_s, stay.is_accessed = now, True

    def on_evicted(self, block_id: int, now: float) -> None:
        if (stay := self._stays.pop(block_id, None)) is not None:
            self.lifetimes.add(now - stay.allocated_s)
            self.idle_times.add(now - stay.last_access_s)
