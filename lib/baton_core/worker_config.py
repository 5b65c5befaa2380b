"""What a worker is made of, and which requests it can take at all."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_core.errors import InvalidRequestError
from baton_core.kv_spec import KVSpec
from baton_core.lease_table import HoldTimings
from baton_core.paging import Paging
from baton_core.router_messages import RequestSpec
from baton_core.scheduler_config import SchedulerConfig, SchedulingPolicy
from baton_core.transfer import PullTimings
from baton_core.worker_info import ModelIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker is made of. `max_model_len` must fit into the pool."""

    worker_id: str
    epoch: int
    identity: ModelIdentity
    kv_spec: KVSpec
    num_blocks: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    is_verified_by_checksum: bool
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    max_num_requests: int = 1024
    """Requests accepted at a time, running and waiting."""
    hold: HoldTimings = field(default_factory=HoldTimings)
    pull: PullTimings = field(default_factory=PullTimings)

    @property
    def paging(self) -> Paging:
        return self.kv_spec.paging

    def check(self, spec: RequestSpec) -> None:
        """Refuse a prompt that would not fit the model, and a priority where there are none.

        Raises:
            InvalidRequestError: names the field, its value and what is allowed.
        """
        if spec.priority and self.scheduler.policy is SchedulingPolicy.FCFS:
            raise InvalidRequestError("priority", spec.priority, "0, under the scheduling policy fcfs")
        num_tokens, limit = len(spec.prompt_token_ids), self.max_model_len - 1
        if not 1 <= num_tokens <= limit:
            allowed = f"1 to {limit} tokens, one less than max_model_len"
            raise InvalidRequestError("prompt", f"{num_tokens} tokens", allowed)
        for token_id in (min(spec.prompt_token_ids), max(spec.prompt_token_ids)):
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequestError("prompt_token_ids", token_id, f"0 to {self.vocab_size - 1}")
