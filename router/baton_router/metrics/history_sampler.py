"""Samples what a router has counted and what it has to do, at a fixed interval, on its loop."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from baton_router.core.flow.router_core import RouterCore
from baton_router.metrics.fleet_metrics import kv_usage
from baton_router.metrics.history import INTERVAL_S, Counts, History, Loads
from baton_router.metrics.latency_window import Latency, LatencySummary
from baton_router.metrics.request_metrics import RequestMetrics

TTFT_WITHIN_S: Final = 30.0
"""The sampled percentile of TTFT is that of so many seconds."""
_log = logging.getLogger(__name__)


class HistorySampler:
    """Keeps the history of one router, and the latest summary of its latencies."""

    def __init__(self, core: RouterCore, requests: RequestMetrics) -> None:
        self.history = History()
        self.latencies: LatencySummary = LatencySummary()
        """The window as it is at the latest sample."""
        self._core = core
        self._requests = requests
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sample from now on."""
        self._sampling = asyncio.create_task(self._sample())

    async def stop(self) -> None:
        """Sample no more. Raises nothing: a router that stops has more to do than this."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        epoch_s = time.time() - loop.time()
        due_s = loop.time()
        while True:
            try:
                self._take(loop.time(), epoch_s)
            except Exception:
                _log.exception("a sample is left out")
            due_s = max(due_s + INTERVAL_S, loop.time())
            await asyncio.sleep(due_s - loop.time())

    def _take(self, now: float, epoch_s: float) -> None:
        requests, core = self._requests, self._core
        self.latencies = requests.latencies.summary(now)
        loads = _loads(core, requests.latencies.quantile(now, Latency.TTFT, 0.9, TTFT_WITHIN_S))
        self.history.add(epoch_s + now, _counts(requests), loads)
        core.scaling.sample(now, core.fleet.workers(), core.waiting)


def _counts(requests: RequestMetrics) -> Counts:
    ended = requests.ended()
    return Counts(
        num_finished=requests.num_finished_requests,
        num_failed=ended.num_failed,
        num_prompt_tokens=ended.num_prompt_tokens,
        num_generated_tokens=ended.num_generated_tokens,
        transfer_bytes=requests.work.transfer_bytes,
    )


def _loads(core: RouterCore, ttft_p90_s: float | None) -> Loads:
    loads = [load for _, load in core.fleet.workers()]
    return Loads(
        num_queued=core.admission.num_waiting,
        num_running=sum(load.num_running for load in loads),
        num_waiting=sum(load.num_waiting for load in loads),
        kv_usage=kv_usage(core.fleet),
        ttft_p90_s=ttft_p90_s,
    )
