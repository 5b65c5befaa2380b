"""An engine of the simulation that computes with a real model and moves real blocks."""

from __future__ import annotations

from baton_core.worker.step_plan import StepPlan, StepResult
from baton_core.worker.worker_events import BlockPull
from baton_engine.runner import ModelRunner
from baton_kv.connector import BlockCopy, KVConnector, PullOrder, PullOutcome


class TorchEngine:
    """One worker's runner and connector, and counts of what they were asked to do."""

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
        self._num_orders = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_open_slices += sum(not piece.samples for piece in plan.slices)
        self.max_batch_len = max(self.max_batch_len, len(plan.slices))
        return self._runner.execute(plan)

    def checksum(self, block_id: int) -> int:
        (checksum,) = self.connector.seal((block_id,))
        assert checksum is not None, "only a transport that verifies by checksum seals"
        return checksum

    def pull(self, blocks: tuple[BlockPull, ...], source: TorchEngine) -> tuple[int, ...]:
        if self._sources.get(source.worker_id) != source.epoch:
            self.connector.connect(source.worker_id, source.connector.describe())
            self._sources[source.worker_id] = source.epoch
        outcome = self._execute_order(blocks, source)
        self.num_pulled_blocks += len(blocks) - len(outcome.failed)
        return outcome.failed

    def _execute_order(self, blocks: tuple[BlockPull, ...], source: TorchEngine) -> PullOutcome:
        self._num_orders += 1
        copies = tuple(
            BlockCopy(
                remote_block_id=block.remote_block_id,
                local_block_id=block.local_block_id,
                checksum=block.checksum,
            )
            for block in blocks
        )
        self.connector.pull(
            PullOrder(pull_id=self._num_orders, source=source.worker_id, epoch=source.epoch, copies=copies)
        )
        outcomes: list[PullOutcome] = []
        while not outcomes:
            assert source.connector.poll() == [], "its own orders have ended before"
            outcomes = self.connector.poll()
        (outcome,) = outcomes
        return outcome
