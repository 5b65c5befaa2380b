"""The registration of a worker, and the load that it reports while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from baton_core.model.model_identity import ModelIdentity
from baton_core.step_work import StepWork

MAX_REPORTED_ADAPTERS: Final = 256
MAX_REPORTED_WAITING: Final = 256


class Role(StrEnum):
    """The preference of a worker; a mixed worker does both."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @property
    def can_prefill(self) -> bool:
        return self is not Role.DECODE

    @property
    def can_decode(self) -> bool:
        return self is not Role.PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as it registers at a router. A restarted worker has a new epoch."""

    worker_id: str
    epoch: int
    role: Role
    identity: ModelIdentity
    max_model_len: int
    vocab_size: int
    num_blocks: int
    max_num_seqs: int
    peer_address: str
    """Address of the peer channel, `tcp://host:port` or `ipc://...`."""
    kv_description: bytes
    """The connector's own description of its pool, opaque to the router."""
    block_bytes: int = 1
    """Bytes of one block's KV, all layers."""
    metrics_address: str = ""
    """Address of its metrics (`host:port`); empty: none, so its routers publish them."""
    data_parallel_rank: int = 0
    """Number of the data-parallel rank that it belongs to: requests may name it."""
    has_prefix_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRates:
    """Speeds of a worker, as it has learned them from its own steps and pulls; 0 is not known yet.

    Where a count has grown since the last report, the rate was learned anew.
    """

    prefill_tokens_per_s: float = 0.0
    """Prompt tokens that steps compute."""
    decode_step_s: float = 0.0
    """A step without prompt tokens."""
    pull_bytes_per_s: float = 0.0
    """Bytes per second of copies from other workers' pools to this one's."""
    num_prefill_steps: int = 0
    """Steps with prompt tokens that its rate was learned from."""
    num_decode_steps: int = 0
    """Steps without prompt tokens that their time was learned from."""
    num_pulls: int = 0
    """Copies that their rate was learned from."""

    @property
    def known(self) -> tuple[bool, bool, bool]:
        """Three flags, each true for a known rate: of prefill, of decode steps, of copies."""
        return self.prefill_tokens_per_s > 0, self.decode_step_s > 0, self.pull_bytes_per_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCounts:
    """A histogram of which the reader knows the bounds."""

    counts: tuple[int, ...]
    total: float
    """Sum of all values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """Figures of a worker for metrics alone; numbers of tokens and the like are counted since its start."""

    sleep_level: int = 0
    """0: awake; 1: asleep with its weights in the host's memory; 2: asleep without them."""
    num_queried_tokens: int = 0
    """Prompt tokens looked up in its prefix cache."""
    num_hit_tokens: int = 0
    """Prompt tokens of these that were found."""
    num_computed_tokens: int = 0
    """Prompt tokens of requests that are over, computed here, once or again."""
    num_cached_tokens: int = 0
    """Prompt tokens of requests that are over, found in its prefix cache."""
    num_remote_tokens: int = 0
    """Prompt tokens copied from other workers."""
    num_remote_queried_tokens: int = 0
    """Prompt tokens that were not in its cache, of requests for which blocks were copied."""
    num_preemptions: int = 0
    step_counts: tuple[int, ...] = ()
    """Steps by their number of tokens, in the buckets of the histogram."""
    num_step_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_position: tuple[int, ...] = ()
    """Accepted tokens by position in a draft; empty without speculative decoding."""
    max_loras: int = 0
    """LoRA adapters that a step may use; 0 where it takes none."""
    waiting_adapters: tuple[str, ...] = ()
    """Names of adapters of requests that wait, at most `MAX_REPORTED_ADAPTERS`."""
    running_adapters: tuple[str, ...] = ()
    block_residency: tuple[BucketCounts, ...] = ()
    """Lifetimes, idle times and reuse gaps of sampled KV blocks; empty where they are not measured."""
    work: StepWork | None = None
    """Work of all steps, for each accelerator; None where it is not estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """A worker's state, sent with every heartbeat."""

    num_running: int = 0
    num_waiting: int = 0
    num_deferred: int = 0
    """Requests beside those that wait: their blocks are on their way, or their form is being compiled."""
    num_queued_tokens: int = 0
    """Prompt tokens that are not computed yet."""
    num_available_blocks: int = 0
    """Free and cached blocks together: what a new request could take."""
    step_age_s: float = 0.0
    """Age of the step in flight; 0 if there is none."""
    is_asleep: bool = False
    """True if it refuses requests because an operator made it sleep."""
    is_paused: bool = False
    """True if it computes nothing because an operator paused it; what it has waits."""
    role: Role | None = None
    """Its preference now; None is the role it registered with."""
    is_role_fixed: bool = False
    """True if an operator gave it that role: routers do not change it by themselves."""
    is_draining: bool = False
    """True if it refuses requests because it is to be emptied; those it has go on."""
    weights: str = ""
    """Hash of the weights that it computes with now; empty is those that it registered with."""
    fault: str = ""
    """The fault for which it refuses requests until it is restarted; empty while there is none."""
    rates: WorkerRates = field(default_factory=WorkerRates)
    adapters: tuple[str, ...] = ()
    """Digests of the LoRA adapters that it has loaded, at most `MAX_REPORTED_ADAPTERS`, used last."""
    loading_adapters: tuple[str, ...] = ()
    """Digests of those that it loads now."""
    adapter_load_s: float = 0.0
    """Time that its last adapter took to load; 0 is not known yet."""
    waiting_request_ids: tuple[str, ...] = ()
    """Requests of which nothing is computed yet, at most `MAX_REPORTED_WAITING`, the last in its queue."""
    figures: EngineFigures | None = None
    """None before the first heartbeat."""

    @property
    def is_taking(self) -> bool:
        """True if it takes requests."""
        return not (self.is_asleep or self.is_draining or self.fault)

    @property
    def is_serving(self) -> bool:
        """True if it takes requests and computes them."""
        return self.is_taking and not self.is_paused
