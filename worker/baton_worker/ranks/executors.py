"""The choice of how ranks are started."""

from __future__ import annotations

from baton_core.errors import InvalidConfigError
from baton_engine.loading import EngineSettings
from baton_worker.ranks.executor_settings import ExecutorSettings
from baton_worker.ranks.rank_starter import LocalRanks, RankStarter


def rank_starter(executor: ExecutorSettings, settings: EngineSettings) -> RankStarter:
    """Return what starts the ranks of a group whose leader this process is.

    Raises:
        InvalidConfigError: there is no such executor here.
    """
    if executor.backend == "mp":
        return LocalRanks()
    raise InvalidConfigError(f"distributed_executor_backend is {executor.backend!r}; allowed: mp")
