"""The last minutes of a router: of one process, and of all of them together."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from baton_router.metrics.history import INTERVAL_S, Sample
from baton_router.metrics.latency_window import LatencyCounts
from baton_router.metrics.router_metrics import RouterMetrics


class RecentPart(msgspec.Struct, kw_only=True):
    """The last minutes of one process."""

    pid: int
    latencies: LatencyCounts
    samples: list[Sample]


def recent_part(metrics: RouterMetrics, since: float) -> RecentPart:
    """Return the last minutes of this process, with the samples that may belong to others after `since`."""
    return RecentPart(
        pid=os.getpid(),
        latencies=metrics.requests.latencies.counts(asyncio.get_running_loop().time()),
        samples=metrics.sampler.history.since(since - INTERVAL_S),
    )


def add_samples(own: Sequence[Sample], others: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Add to each sample those that other processes took closest to it, at most an interval away.

    Loads of workers are the same for all; of the percentiles of TTFT the highest is kept.
    """
    added = list(own)
    for samples in others:
        times = [sample.at_s for sample in samples]
        for index, sample in enumerate(added):
            after = bisect_left(times, sample.at_s)
            near = samples[max(0, after - 1) : after + 1]
            nearest = min(near, key=lambda one: abs(one.at_s - sample.at_s), default=None)
            if nearest is not None and abs(nearest.at_s - sample.at_s) <= INTERVAL_S:
                added[index] = _sum(sample, nearest)
    return added


def _sum(sample: Sample, other: Sample) -> Sample:
    mine, theirs = sample.loads, other.loads
    ttft_s = [value for value in (mine.ttft_p90_s, theirs.ttft_p90_s) if value is not None]
    return Sample(
        at_s=sample.at_s,
        finished_per_s=sample.finished_per_s + other.finished_per_s,
        failed_per_s=sample.failed_per_s + other.failed_per_s,
        prompt_tokens_per_s=sample.prompt_tokens_per_s + other.prompt_tokens_per_s,
        generated_tokens_per_s=sample.generated_tokens_per_s + other.generated_tokens_per_s,
        transfer_bytes_per_s=sample.transfer_bytes_per_s + other.transfer_bytes_per_s,
        loads=replace(
            mine, num_queued=mine.num_queued + theirs.num_queued, ttft_p90_s=max(ttft_s, default=None)
        ),
    )
