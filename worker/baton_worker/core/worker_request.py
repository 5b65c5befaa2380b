"""A request as the worker that has taken it keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.blocks.block_hash import root_hash
from baton_core.errors import InvalidRequestError
from baton_core.sessions.router_messages import (
    Generate,
    OutputSoFar,
    Prefill,
    RequestSpec,
    Reserve,
    ToRouter,
)
from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.step_plan import SeqId
from baton_core.worker.worker_events import SendToRouter, WorkerEffect
from baton_worker.core.outputs import Outputs
from baton_worker.core.worker_config import WorkerConfig


@dataclass(slots=True, kw_only=True)
class WorkerRequest:
    """Changes as its sequences come and go."""

    spec: RequestSpec
    router_id: str
    sequences: dict[int, Sequence]
    """The sequences that have not ended, by index."""
    followers: list[Sequence]
    """Sequences that begin when the first one has computed the prompt, and find it in the prefix cache."""
    is_prefill: bool = False
    has_first_token: bool = False

    @property
    def leader(self) -> Sequence:
        """The sequence that computes, or imports, the prompt."""
        return next(iter(self.sequences.values()))

    def emit(self, *messages: ToRouter) -> list[WorkerEffect]:
        """Return the effects that send messages to its router."""
        return [SendToRouter(router_id=self.router_id, message=one) for one in messages]

    def take_followers(self) -> list[Sequence]:
        """Take the followers that may begin now."""
        followers, self.followers = self.followers, []
        return [seq for seq in followers if seq.seq_id.index in self.sequences]


def new_request(
    now: float,
    router_id: str,
    command: Generate | Prefill | Reserve,
    *,
    config: WorkerConfig,
    outputs: Outputs,
) -> WorkerRequest:
    """The request that a command asks for, with its first sequence, or all of them if they were resumed.

    Raises:
        InvalidRequestError: several sequences were resumed, or something is pooled, and it is to be split.
    """
    spec = command.spec
    if len(spec.resumed) > 1 and not isinstance(command, Generate):
        raise InvalidRequestError("resumed", f"{len(spec.resumed)} sequences", "one, where it is split")
    if spec.pooling is not None and not isinstance(command, Generate):
        raise InvalidRequestError("task", spec.pooling.task.value, "generate, where it is split")
    is_resumed = bool(spec.resumed)
    root, rules = root_hash(config.identity, spec.cache_salt, spec.adapter_digest), outputs.rules(spec)
    sequences = [
        Sequence(
            SeqId(spec.request_id, one.index),
            spec.prompt_token_ids,
            spec.params,
            paging=config.paging,
            root=root,
            arrival_s=now,
            state=SequenceState.PULLING if isinstance(command, Reserve) else SequenceState.WAITING,
            priority=config.priority_of(spec),
            is_pinned=isinstance(command, Prefill),
            rules=rules,
            max_chunk_tokens=outputs.max_chunk_tokens(spec.params),
            publishes_contents=config.publishes_cache,
            cache_salt=spec.cache_salt,
            output_token_ids=one.token_ids,
            pooling=spec.pooling,
            is_whole=config.is_whole(spec),
            prompt_embeds=spec.prompt_embeds,
            adapter=spec.adapter,
        )
        for one in spec.resumed or (OutputSoFar(index=0, token_ids=()),)
    ]
    return WorkerRequest(
        spec=spec,
        router_id=router_id,
        sequences={seq.seq_id.index: seq for seq in sequences},
        followers=sequences[1:],
        is_prefill=isinstance(command, Prefill),
        has_first_token=isinstance(command, Reserve) or (is_resumed and isinstance(command, Generate)),
    )
