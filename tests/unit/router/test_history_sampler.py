"""The task behind the dashboard's curves goes on, and ends, whatever goes wrong in it."""

from __future__ import annotations

import asyncio

import pytest

from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.metrics import history_sampler
from baton_router.metrics.history_sampler import HistorySampler
from baton_router.metrics.latency_window import LatencySummary, LatencyWindow
from baton_router.metrics.request_metrics import NO_SLO, RequestMetrics


class BrokenOnce(LatencyWindow):
    """Its first summary fails."""

    is_broken = True

    def summary(self, now: float) -> LatencySummary:
        if self.is_broken:
            self.is_broken = False
            raise ZeroDivisionError("injected")
        return super().summary(now)


async def sampled(sampler: HistorySampler) -> None:
    async with asyncio.timeout(20.0):
        while not sampler.history.since(0):  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.01)


async def test_an_error_in_a_sample_is_logged_and_the_next_ones_are_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_sampler, "INTERVAL_S", 0.01)
    requests = RequestMetrics()
    requests._latencies = BrokenOnce(NO_SLO)
    sampler = HistorySampler(RouterCore(RouterConfig()), requests)
    sampler.start()
    await sampled(sampler)
    await sampler.stop()
    (line,) = [record for record in caplog.records if record.name == history_sampler.__name__]
    assert line.exc_info is not None
    assert line.exc_info[0] is ZeroDivisionError


async def test_stop_raises_nothing_where_the_task_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = HistorySampler(RouterCore(RouterConfig()), RequestMetrics())

    async def fail() -> None:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(sampler, "_sample", fail)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    sampler.start()
    await asyncio.sleep(0)
    await sampler.stop()
