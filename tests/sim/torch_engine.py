"""An engine of the simulation that computes with a real model and moves real blocks."""

from __future__ import annotations

from baton_core.worker.step_plan import StepPlan, StepResult
from baton_core.worker.worker_events import BlockPull, Pull, PullDone
from baton_engine.steps.runner import ModelRunner
from baton_kv.connector import KVConnector
from tests.builders import make_source


class TorchEngine:
    """One worker's runner and connector, and counts of what they were asked to do."""

    num_ranks = 1

    def __init__(self, worker_id: str, epoch: int, runner: ModelRunner, connector: KVConnector) -> None:
        self.worker_id = worker_id
        self.epoch = epoch
        self.connector = connector
        self.num_open_slices = 0
        """Slices that stop before the end of their tokens: chunks of a prompt."""
        self.max_batch_len = 0
        """Most slices in a step."""
        self.num_pulled_blocks = 0
        self._runner = runner
        self._sources: dict[str, int] = {}
        self._num_pulls = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_open_slices += sum(not piece.samples for piece in plan.slices)
        self.max_batch_len = max(self.max_batch_len, len(plan.slices))
        return self._runner.execute(plan)

    def checksum(self, block_id: int) -> int:
        (checksum,) = self.connector.compute_checksums((block_id,))
        assert checksum is not None, "only a transport that verifies by checksum computes them"
        return checksum

    def pull(self, blocks: tuple[BlockPull, ...], source: TorchEngine) -> tuple[int, ...]:
        if self._sources.get(source.worker_id) != source.epoch:
            self.connector.connect(source.worker_id, source.connector.describe())
            self._sources[source.worker_id] = source.epoch
        outcome = self._execute_pull(blocks, source)
        self.num_pulled_blocks += len(blocks) - len(outcome.failed_block_ids)
        return outcome.failed_block_ids

    def _execute_pull(self, blocks: tuple[BlockPull, ...], source: TorchEngine) -> PullDone:
        self._num_pulls += 1
        kv_source = make_source(source.worker_id, epoch=source.epoch)
        self.connector.pull(Pull(pull_id=self._num_pulls, source=kv_source, blocks=blocks))
        ended: list[PullDone] = []
        while not ended:
            assert source.connector.poll() == [], "its own pulls have ended before"
            ended = self.connector.poll()
        (done,) = ended
        return done
