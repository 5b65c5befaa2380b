"""The configuration of a worker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from baton_core.blocks.block_pool import BlockPool
from baton_core.blocks.block_residency import BlockResidency
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.kv_layout.paging import Paging
from baton_core.model.model_identity import ModelIdentity, with_weights
from baton_core.requests.pooling import PoolingModel, PoolingSpec
from baton_core.worker.learned_rates import LearnedRates
from baton_core.worker.speculative_config import SpeculativeConfig
from baton_decode.core.kv_pulls import KvPulls
from baton_decode.core.transfer import PullTimings
from baton_prefill.core.lease_table import LeaseTable, LeaseTimings
from baton_worker.core.metrics_config import MetricsConfig
from baton_worker.core.scheduler import Scheduler
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.speculation.speculation import Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The configuration of a worker. `max_model_len` must fit into the pool."""

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
    enable_prefix_caching: bool = True
    """Keep blocks for later prompts that begin alike, and share those of prompts that are computed."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    publishes_cache: bool = False
    """True if changes of the cache are told as `CacheChanged`, too."""
    hold: LeaseTimings = field(default_factory=LeaseTimings)
    pull: PullTimings = field(default_factory=PullTimings)
    compile_within_s: float = 30.0
    """Time that a request's grammar may take to compile."""
    max_cpu_loras: int = 0
    """LoRA adapters that are kept loaded; 0 where the engine takes none."""
    pauses_when_failing: bool = True
    """Take no requests for a while when steps fail in a row: others may do better."""
    plans_ahead: bool = False
    """True if a step is planned while the one before it runs, where that needs none of its tokens."""
    speculative: SpeculativeConfig | None = None
    """How tokens are drafted; None: none are."""
    num_stages: int = 1
    """Stages of the model's pipeline: steps of different sequences that are in flight at a time."""
    logits_processors: frozenset[str] = frozenset()
    """Names that requests may ask for."""
    embedding_size: int = 0
    """Width of the embeddings that may stand in the place of tokens; 0 where the model takes none."""
    has_batch_processors: bool = False
    """True if the engine processes the logits of every request."""
    pooling: PoolingModel | None = None
    """Description of what the model pools; None: it generates."""

    @property
    def paging(self) -> Paging:
        return self.kv_spec.paging

    def with_weights(self, weights: str) -> WorkerConfig:
        """Return the configuration after a switch of weights: blocks get other hashes."""
        identity = with_weights(self.identity, weights)
        return self if identity is self.identity else replace(self, identity=identity)

    def make_pool(self) -> BlockPool:
        """Return the owner of the worker's blocks."""
        share = self.metrics.residency_share
        residency = BlockResidency(share) if share else None
        return BlockPool(
            self.num_blocks, enable_prefix_caching=self.enable_prefix_caching, residency=residency
        )

    def make_scheduler(self, pool: BlockPool) -> Scheduler:
        """Return what plans the worker's steps."""
        speculation = Speculation(self.speculative, self.max_model_len)
        return Scheduler(
            pool, self.paging, self.scheduler, num_stages=self.num_stages, speculation=speculation
        )

    def make_lease_table(self, pool: BlockPool) -> LeaseTable:
        """Return the producer's half of a worker: what other workers pull from `pool`."""
        return LeaseTable(
            pool, epoch=self.epoch, has_checksums=self.is_verified_by_checksum, timings=self.hold
        )

    def make_kv_pulls(self, pool: BlockPool, rates: LearnedRates) -> KvPulls:
        """Return the consumer's half of a worker: what it pulls into `pool` from others."""
        return KvPulls(
            pool,
            rates,
            worker_id=self.worker_id,
            epoch=self.epoch,
            kv_spec=self.kv_spec,
            timings=self.pull,
            is_verified_by_checksum=self.is_verified_by_checksum,
        )

    def is_whole(self, pooling: PoolingSpec | None) -> bool:
        """Return whether a prompt is computed in one step, without the prefix cache, to be pooled so."""
        if pooling is None or self.pooling is None:
            return False
        return self.pooling.needs_whole_prompt(pooling.task)
