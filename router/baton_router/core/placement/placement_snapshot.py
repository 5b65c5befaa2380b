"""The snapshot for a placement: the request, and each worker as the request sees it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from baton_core.requests.request_context import NamedWorkers
from baton_core.sessions.worker_info import Role, WorkerRates
from baton_router.core.placement.rate_aging import median

PRIOR: Final = WorkerRates(prefill_tokens_per_s=5_000.0, decode_step_s=0.02, pull_bytes_per_s=1e10)
"""Rates assumed of a fleet that has learned nothing. The bandwidth is high on purpose: transfers that look
cheap are tried, and then their rate is known."""
PRIOR_ADAPTER_S: Final = 0.2
"""Time assumed of the load of an adapter at a worker that has loaded none."""
EXPECTED_OUTPUT_TOKENS: Final = 128
"""Expected output tokens of a sequence, unless its `max_tokens` are fewer."""


class WorkerSpeed(NamedTuple):
    """Assumed speed of a worker; only `prefill_step_s` may be 0. A tuple, as `WorkerView` is."""

    prefill_tokens_per_s: float = PRIOR.prefill_tokens_per_s
    prefill_step_s: float = 0.0
    """Fixed time of each prompt step."""
    decode_step_s: float = PRIOR.decode_step_s
    pull_bytes_per_s: float = PRIOR.pull_bytes_per_s


PRIOR_SPEED: Final = WorkerSpeed()


class WorkerView(NamedTuple):
    """A worker as one request sees it. A tuple, for there is one of each worker for every request."""

    worker_id: str
    role: Role
    """Role that it prefers now."""
    num_cached_tokens: int
    """Prompt tokens of this request whose blocks it holds."""
    num_queued_tokens: int
    """Prompt tokens of others that it has yet to compute."""
    num_sequences: int
    """Sequences given to it that have not ended."""
    can_reserve: bool
    """True if it has room for the prompt's blocks while they arrive."""
    is_asleep: bool = False
    is_draining: bool = False
    """True if it takes no new requests because it is being emptied."""
    is_faulty: bool = False
    """True if it takes no new requests because of a fault; most faults pass."""
    is_paused: bool = False
    """True if it computes nothing for a while: requests wait at the router, or go to others."""
    num_free_blocks: int = sys.maxsize
    """Blocks that a new request could take."""
    max_num_seqs: int = sys.maxsize
    """Sequences that it runs at a time."""
    speed: WorkerSpeed = PRIOR_SPEED
    broken_sources: frozenset[str] = frozenset()
    """Workers whose blocks do not arrive here."""
    max_model_len: int = sys.maxsize
    """Tokens of a sequence that it holds, prompt and output together."""
    weights: str = ""
    """Hash of the weights that it has."""
    data_parallel_rank: int = 0
    adapter_s: float = 0.0
    """Time until it has loaded the request's adapter; 0 where it has, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """The needs of a request."""

    request_id: str = ""
    at_s: float = 0.0
    """Time of the placement."""
    num_prompt_tokens: int
    num_blocks: int = 0
    """Blocks of the computed prompt."""
    block_size: int = 1
    block_bytes: int = 1
    num_sequences: int = 1
    num_output_tokens: int = EXPECTED_OUTPUT_TOKENS
    """Expected of each sequence."""
    num_needed_tokens: int = 0
    """Tokens that a worker must be able to hold in one sequence: what there is, and some output."""
    max_ttft_s: float = math.inf
    """Time that is left until the first token."""
    weights: str = ""
    """Hash of the weights that all of its tokens come from; empty where any will do."""
    priority: int = 0
    """Lower values are more important."""
    data_parallel_rank: int | None = None
    """The data-parallel rank whose workers are to take it, while it has some; None is any."""
    named: NamedWorkers | None = None
    """The workers that are to take it while they can."""
    is_pooling: bool = False
    """True if it pools: a worker that prefills takes it whole, and nothing is decoded."""
    session_id: str = ""
    prompt_key: str = ""
    """Equal for prompts that begin alike."""
    turn: int = 0
    """Number of requests placed before."""
    split_turn: int = 0
    """Number of requests split before."""

    @property
    def is_decoded(self) -> bool:
        """True if more tokens are expected than the first, which the prompt's last step gives."""
        return self.num_output_tokens > 1 and not self.is_pooling

    @property
    def session_key(self) -> str:
        """Requests of a session share it; one without a session has a key of its own, so these spread."""
        return self.session_id or self.request_id

    @property
    def affinity_key(self) -> str:
        """Requests of a session share it, or else those that begin alike."""
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
