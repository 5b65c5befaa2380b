"""The scheduler of a pipeline: prompts of several chunks, which stages compute at the same time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from baton_worker.core.scheduler_config import SchedulerConfig
from tests.builders import ONE_GROUP
from tests.property.test_scheduler import SchedulerMachine


class PipelineMachine(SchedulerMachine):
    """Prompts of several chunks, which stages compute at the same time."""

    @initialize(
        budget=st.integers(1, 6),
        max_num_seqs=st.integers(1, 3),
        threshold=st.sampled_from([0, 2]),
        num_stages=st.sampled_from([2, 3, 4]),
    )
    def configure(self, budget: int, max_num_seqs: int, threshold: int, num_stages: int) -> None:
        config = SchedulerConfig(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, long_prefill_token_threshold=threshold
        )
        self._configure(ONE_GROUP, config, num_stages)

    @rule()
    def fill(self) -> None:
        """Plan as many steps as there are stages."""
        while len(self.plans) < self.num_stages:
            num_planned = len(self.plans)
            self.schedule()
            if len(self.plans) == num_planned:
                break


PipelineMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestPipeline = PipelineMachine.TestCase
