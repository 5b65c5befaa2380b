"""Ranks that share one GPU, and so exchange through the host: what a machine with a single GPU can run."""

from __future__ import annotations

from baton_engine.engine_settings import EngineSettings
from baton_worker.ranks.executor_settings import ExecutorSettings
from baton_worker.ranks.rank_starter import LocalRanks


class OneGpu(LocalRanks):
    """Starts ranks as processes that see the leader's GPU."""

    @classmethod
    def of(cls, executor: ExecutorSettings, settings: EngineSettings) -> OneGpu:
        return cls()

    def gpu_of(self, number: int) -> int:
        return 0
