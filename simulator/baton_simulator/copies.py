"""Copies of blocks between pools, piece by piece: each piece reads and writes when its time has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from baton_core.blocks.block_pool import BlockState
from baton_core.worker.worker_events import AbortPull, BlockPull, Pull, PullAborted, PullDone
from baton_simulator.interfaces import WorkerNode

_ABORT_S: Final = 0.001
_GONE_S: Final = 0.02
"""Time in which a consumer notices that its source is gone."""
_WRITTEN: Final = (BlockState.PULLING, BlockState.QUARANTINED)


class Copies:
    """The pulls of one worker that are not over."""

    def __init__(self, worker: WorkerNode) -> None:
        self._worker = worker
        self._open: dict[int, _Copy] = {}

    def begin(self, pull: Pull) -> None:
        copy = self._open[pull.pull_id] = _Copy(self._worker, pull, self._end)
        copy.begin()

    def abort(self, abort: AbortPull) -> None:
        """Answer as the transport can: stop and say so, or say that writes may go on, as other ranks' may."""
        worker = self._worker
        is_safe = worker.cluster.conditions.backend.is_abort_safe and worker.engine.num_ranks == 1
        worker.cluster.coverage["transfers aborted"] += 1
        copy = self._open.get(abort.pull_id)
        if is_safe and copy is not None:
            copy.is_stopped = True
            del self._open[abort.pull_id]
        answer = PullAborted(pull_id=abort.pull_id, is_fenced=is_safe)
        worker.after(_ABORT_S, lambda: worker.handle(answer))

    def _end(self, done: PullDone) -> None:
        del self._open[done.pull_id]
        self._worker.take(lambda: self._worker.handle(done))


class _Copy:
    """One pull in flight."""

    def __init__(self, worker: WorkerNode, pull: Pull, end: Callable[[PullDone], None]) -> None:
        self.is_stopped = False
        self._worker = worker
        self._pull = pull
        self._end = end
        self._source = worker.cluster.workers.get(pull.source.worker_id)
        self._failed: list[int] = []

    def begin(self) -> None:
        cluster, rng = self._worker.cluster, self._worker.rng
        size = max(1, -(-len(self._pull.blocks) // cluster.conditions.num_pieces))
        pieces = [self._pull.blocks[at : at + size] for at in range(0, len(self._pull.blocks), size)]
        if cluster.conditions.backend.uses_network:
            carry_s = cluster.network.carry_s(
                self._pull.source.worker_id, self._worker.name, len(self._pull.blocks)
            )
        else:
            carry_s = 0.0
        total_s = rng.uniform(*cluster.conditions.pull_delays_s) + carry_s
        self._wait(pieces, total_s / len(pieces))

    def _wait(self, pieces: Sequence[tuple[BlockPull, ...]], each_s: float) -> None:
        """Let a piece's time pass, and whatever holds it up."""
        worker, cluster = self._worker, self._worker.cluster
        source, backend = self._source, cluster.conditions.backend

        def ready() -> None:
            if backend.stops_with_source and source is not None and source.is_alive:
                source.take(arrive)
            else:
                arrive()

        def arrive() -> None:
            if backend.uses_network:
                cluster.network.when_up(self._pull.source.worker_id, worker.name, write)
            else:
                write()

        def write() -> None:
            if backend.stops_with_consumer:
                worker.take(lambda: self._write(pieces, each_s))
            elif worker.is_alive:
                self._write(pieces, each_s)

        cluster.clock.after(each_s, ready)

    def _write(self, pieces: Sequence[tuple[BlockPull, ...]], each_s: float) -> None:
        worker, source, pull = self._worker, self._source, self._pull
        if self.is_stopped or not worker.is_alive:
            return
        conditions = worker.cluster.conditions
        is_gone = source is None or source.info.epoch != pull.source.epoch
        is_dead = source is not None and not source.is_alive and conditions.backend.uses_network
        if source is None or is_gone or is_dead or worker.rng.random() < conditions.faults.pull_failure:
            done = PullDone(pull_id=pull.pull_id, error="the source is gone")
            worker.cluster.clock.after(_GONE_S, lambda: None if self.is_stopped else self._end(done))
            return
        for block in pieces[0]:
            state = worker.core.pool.state(block.local_block_id)
            assert state in _WRITTEN, (
                f"{worker.name}: pull {pull.pull_id} writes block {block.local_block_id}, which is {state}"
            )
        failed = worker.engine.pull(pieces[0], source.engine)
        self._failed += failed
        worker.cluster.coverage["blocks that arrived wrong"] += len(failed)
        if worker.engine.num_ranks != source.engine.num_ranks:
            worker.cluster.coverage["blocks between groups of different sizes"] += len(pieces[0])
        if len(pieces) > 1:
            self._wait(pieces[1:], each_s)
        else:
            self._end(PullDone(pull_id=pull.pull_id, failed_block_ids=tuple(self._failed)))
