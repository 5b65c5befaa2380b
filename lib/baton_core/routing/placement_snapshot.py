"""What a placement is decided on: the request and each worker as the request sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from baton_core.routing.rate_aging import median
from baton_core.sessions.worker_info import Role, WorkerRates

PRIOR: Final = WorkerRates(prefill_tokens_per_s=5_000.0, decode_step_s=0.02, pull_bytes_per_s=1e10)
"""Of a fleet that has learned nothing yet. The bandwidth is high on purpose: whoever takes transfers for
cheap tries some, and knows."""
EXPECTED_OUTPUT_TOKENS: Final = 128
"""Of a sequence, unless its `max_tokens` are fewer."""


class WorkerSpeed(NamedTuple):
    """What a worker is taken to do; nothing is 0 but `prefill_step_s`. A tuple, as `WorkerView` is."""

    prefill_tokens_per_s: float = PRIOR.prefill_tokens_per_s
    prefill_step_s: float = 0.0
    """What each step of a prompt takes besides."""
    decode_step_s: float = PRIOR.decode_step_s
    pull_bytes_per_s: float = PRIOR.pull_bytes_per_s


PRIOR_SPEED: Final = WorkerSpeed()


class WorkerView(NamedTuple):
    """A worker as one request sees it. A tuple, for there is one of each worker for every request."""

    worker_id: str
    role: Role
    """What it prefers to do now."""
    num_cached_tokens: int
    """Prompt tokens of this request whose blocks it holds."""
    num_queued_tokens: int
    """Prompt tokens of others that it has yet to compute."""
    num_sequences: int
    """Sequences given to it that have not ended."""
    can_reserve: bool
    """Whether it has room for the prompt's blocks while they arrive."""
    is_asleep: bool = False
    is_draining: bool = False
    """Whether it takes no new requests, because it is to be emptied or is faulty."""
    num_free_blocks: int = sys.maxsize
    """That a new request could take."""
    max_num_seqs: int = sys.maxsize
    """Sequences that it runs at a time."""
    speed: WorkerSpeed = PRIOR_SPEED
    broken_sources: frozenset[str] = frozenset()
    """Workers whose blocks do not arrive here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What a request asks of the workers."""

    request_id: str = ""
    at_s: float = 0.0
    """When it is placed."""
    num_prompt_tokens: int
    num_blocks: int = 0
    """That the computed prompt takes."""
    block_size: int = 1
    block_bytes: int = 1
    num_sequences: int = 1
    num_output_tokens: int = EXPECTED_OUTPUT_TOKENS
    """Expected of each sequence."""
    priority: int = 0
    """Lower values are more important."""
    session_id: str = ""
    prompt_key: str = ""
    """Equal for prompts that begin alike."""
    turn: int = 0
    """How many were placed before."""

    @property
    def affinity_key(self) -> str:
        """Requests with the same one go well together."""
        return self.session_id or self.prompt_key or self.request_id


def typical_rates(known: Iterable[WorkerRates]) -> WorkerRates:
    """Rates assumed of a worker that has not learned them: the median of those that have, else `PRIOR`."""
    rates = list(known)
    return WorkerRates(
        prefill_tokens_per_s=_median([one.prefill_tokens_per_s for one in rates], PRIOR.prefill_tokens_per_s),
        decode_step_s=_median([one.decode_step_s for one in rates], PRIOR.decode_step_s),
        pull_bytes_per_s=_median([one.pull_bytes_per_s for one in rates], PRIOR.pull_bytes_per_s),
    )


def speed_of(own: WorkerRates, typical: WorkerRates) -> WorkerSpeed:
    """Fill up what a worker has not learned.

    A prefill rate was learned beside the worker's own cost of a step, or is all there is to a step where
    that is not known.
    """
    has_prefilled = own.prefill_tokens_per_s > 0
    return WorkerSpeed(
        prefill_tokens_per_s=own.prefill_tokens_per_s or typical.prefill_tokens_per_s,
        prefill_step_s=own.decode_step_s if has_prefilled else 0.0,
        decode_step_s=own.decode_step_s or typical.decode_step_s,
        pull_bytes_per_s=own.pull_bytes_per_s or typical.pull_bytes_per_s,
    )


def _median(values: list[float], default: float) -> float:
    known = sorted(value for value in values if value > 0)
    return median(known) if known else default
