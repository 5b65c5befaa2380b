"""The last minutes of a router: rates and loads, sampled at a fixed interval into a ring.

Plain state on the router's loop; the time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from baton_core.sessions.worker_info import Role

INTERVAL_S: Final = 2.0
MAX_SAMPLES: Final = 300
"""Ten minutes; the oldest are forgotten first."""
RATE_INTERVALS: Final = 5
"""Rates are means over so many intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of a router since its start."""

    num_finished: int
    """Requests that finished."""
    num_failed: int
    """Requests that were refused or failed."""
    num_prompt_tokens: int
    """Prompt tokens of requests that finished."""
    num_generated_tokens: int
    transfer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Work that a router and its workers have at one time."""

    num_queued: int
    """Requests that wait at the router for a worker."""
    num_running: int
    """Sequences in the workers' running batches."""
    num_waiting: int
    """Sequences that wait at workers to be scheduled."""
    kv_usage: Mapping[Role, float]
    """Share of the KV blocks in use, by the role of the workers."""
    ttft_p90_s: float | None
    """Over the last half minute; None where no request finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Rates over the last intervals, and the loads at their end."""

    at_s: float
    """Seconds since 1970."""
    finished_per_s: float
    failed_per_s: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    transfer_bytes_per_s: float
    loads: Loads


class History:
    """At most `MAX_SAMPLES` samples."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._counts: deque[tuple[float, Counts]] = deque(maxlen=RATE_INTERVALS + 1)

    def add(self, at_s: float, counts: Counts, loads: Loads) -> None:
        """Take what holds at this time, in seconds since 1970; the first call begins the rates."""
        self._counts.append((at_s, counts))
        before_s, before = self._counts[0]
        elapsed_s = at_s - before_s
        if elapsed_s <= 0:
            return
        self._samples.append(
            Sample(
                at_s=at_s,
                finished_per_s=(counts.num_finished - before.num_finished) / elapsed_s,
                failed_per_s=(counts.num_failed - before.num_failed) / elapsed_s,
                prompt_tokens_per_s=(counts.num_prompt_tokens - before.num_prompt_tokens) / elapsed_s,
                generated_tokens_per_s=(counts.num_generated_tokens - before.num_generated_tokens)
                / elapsed_s,
                transfer_bytes_per_s=(counts.transfer_bytes - before.transfer_bytes) / elapsed_s,
                loads=loads,
            )
        )

    def since(self, at_s: float) -> list[Sample]:
        """The samples that were taken later than that, the first one first."""
        return [sample for sample in self._samples if sample.at_s > at_s]
