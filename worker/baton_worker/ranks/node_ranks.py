"""Ranks over several machines: those of the leader's machine are its processes, the others connect to it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Self

from baton_core.errors import ErrorCode, RequestError
from baton_core.ranks.rank_layout import ParallelSizes
from baton_engine.device import require_gpus
from baton_engine.engine_settings import EngineSettings
from baton_worker.ranks.executor_settings import JOIN_WITHIN_S, ExecutorSettings, started_with
from baton_worker.ranks.rank_listener import RankListener
from baton_worker.ranks.rank_starter import LocalRanks, RankStarter, StartedRank


class NodeRanks(RankStarter):
    """Starts the ranks of machine 0, this one, and waits at `master_addr` for those of the others."""

    def __init__(self, executor: ExecutorSettings, sizes: ParallelSizes) -> None:
        self._executor = executor
        self._sizes = sizes

    @classmethod
    def of(cls, executor: ExecutorSettings, settings: EngineSettings) -> Self:
        require_gpus(settings.device, settings.parallel.num_ranks // executor.nnodes)
        return cls(executor, settings.parallel)

    def start(self, ranks: Sequence[int]) -> list[StartedRank]:
        """Start and await these ranks.

        Raises:
            InvalidConfigError: the address is wrong, or a rank was started with something else.
            RequestError: UNAVAILABLE, not all ranks have come in time.
        """
        executor, sizes = self._executor, self._sizes
        here = sizes.of_node(executor.nnodes, 0)
        self.num_on_host = len(here)
        expected = started_with(sizes, executor.nnodes)
        listener = RankListener(
            executor.master_addr,
            executor.master_port,
            expected,
            token=executor.secret,
            names=("master_addr", "master_port"),
        )
        with closing(listener):
            self.host = listener.address[0]
            local = LocalRanks().start([rank for rank in ranks if rank in here])
            try:
                far = listener.accept(set(ranks) - set(here), JOIN_WITHIN_S, lambda: _require_running(local))
            except BaseException:
                for one in local:
                    one.kill()
                raise
        return [*local, *(_FarRank(rank, channel) for rank, channel in far.items())]

    def close(self) -> None:
        """Do nothing: the machines of the ranks end them."""


class _FarRank(StartedRank):
    """A rank that another machine has started."""

    def kill(self) -> None:
        """End the connection, with which the rank ends."""
        self.channel.shut_down()

    def has_ended(self, within_s: float) -> bool:
        return self.channel.has_ended.wait(within_s)

    def why_ended(self) -> str:
        return "its machine has closed the connection"


def _require_running(ranks: Sequence[StartedRank]) -> None:
    for one in ranks:
        if one.has_ended(0):
            text = f"rank {one.rank} of the model's ranks has not started: {one.why_ended()}"
            raise RequestError(ErrorCode.UNAVAILABLE, text)
