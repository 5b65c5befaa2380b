"""Arrival times of an open-loop load: at a constant or growing rate, evenly or in bursts. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate


class RampShape(StrEnum):
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A rate that changes from the first request to the last."""

    shape: RampShape
    start_rps: float
    """Requests per second; over 0, like the end."""
    end_rps: float

    def rate(self, progress: float) -> float:
        """Return the rate at `progress` of the requests, from 0 to 1."""
        if self.shape is RampShape.LINEAR:
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return float(self.start_rps * (self.end_rps / self.start_rps) ** progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pace of the requests."""

    rate: float | Ramp = math.inf
    """Requests per second; inf: all at once."""
    burstiness: float = 1.0
    """Shape of the gaps' gamma distribution: 1 is a Poisson process, less comes in bursts, more evenly."""

    def arrival_times(self, count: int, rng: random.Random) -> list[float]:
        """Seconds from the first request to each.

        At a fixed rate the gaps are stretched so that the last of `count` requests arrives after
        (count - 1) / rate: every seed then offers the same load.
        """
        if not isinstance(self.rate, Ramp):
            if math.isinf(self.rate) or count < 2:
                return [0.0] * count
            times = self._sum(rng, [1.0] * (count - 1))
            if not times[-1]:  # the gaps of extreme bursts are less than a float can be: one is all of them
                first_late = rng.randrange(1, count)
                times = [float(number >= first_late) for number in range(count)]
            return [at_s / times[-1] * (count - 1) / self.rate for at_s in times]
        steps = max(count - 1, 1)
        return self._sum(rng, [1 / self.rate.rate(number / steps) for number in range(1, count)])

    def _sum(self, rng: random.Random, means_s: list[float]) -> list[float]:
        gaps = (rng.gammavariate(self.burstiness, mean_s / self.burstiness) for mean_s in means_s)
        return list(accumulate(gaps, initial=0.0))
