"""The configuration of a worker, and the requests that it can take at all."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from baton_core.blocks.block_pool import BlockPool
from baton_core.errors import InvalidRequestError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.kv_layout.paging import Paging
from baton_core.model.model_identity import ModelIdentity, with_weights
from baton_core.prompt_embeds import check_places
from baton_core.requests.logprobs import MAX_LOGPROBS
from baton_core.requests.pooling import PoolingModel, check_runner
from baton_core.sessions.router_messages import RequestSpec
from baton_core.worker.learned_rates import LearnedRates
from baton_core.worker.speculative_config import SpeculativeConfig
from baton_decode.core.kv_pulls import KvPulls
from baton_decode.core.transfer import PullTimings
from baton_prefill.core.lease_table import LeaseTable, LeaseTimings
from baton_worker.core.scheduler import Scheduler
from baton_worker.core.scheduler_config import SchedulerConfig, SchedulingPolicy
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
    publishes_cache: bool = False
    """True if changes of the cache are told as `CacheChanged`, too."""
    hold: LeaseTimings = field(default_factory=LeaseTimings)
    pull: PullTimings = field(default_factory=PullTimings)
    compile_within_s: float = 30.0
    """Time that a request's grammar may take to compile."""
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

    def priority_of(self, spec: RequestSpec) -> int:
        """Return a request's priority at this worker: all are alike under fcfs."""
        return 0 if self.scheduler.policy is SchedulingPolicy.FCFS else spec.priority

    def is_whole(self, spec: RequestSpec) -> bool:
        """Return whether a request's prompt is computed in one step, without the prefix cache."""
        if spec.pooling is None or self.pooling is None:
            return False
        return self.pooling.needs_whole_prompt(spec.pooling.task)

    def check(self, spec: RequestSpec) -> None:
        """Refuse what does not fit this model or this worker.

        Raises:
            InvalidRequestError: names the field, its value and what is allowed.
        """
        check_runner(self.pooling, spec.pooling)
        self._check_lengths(spec)
        for field_name, token_ids in _token_ids(spec):
            for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
                if not 0 <= token_id < self.vocab_size:
                    raise InvalidRequestError(field_name, token_id, f"0 to {self.vocab_size - 1}")
        self._check_embeds(spec)
        self._check_logprobs("logprobs", spec.params.logprobs)
        self._check_logprobs("prompt_logprobs", spec.params.prompt_logprobs)
        for name in spec.params.logits_processors:
            if isinstance(name, str) and name not in self.logits_processors:
                allowed = ", ".join(sorted(self.logits_processors)) or "none at this worker"
                raise InvalidRequestError("logits_processors", name, allowed)

    def _check_lengths(self, spec: RequestSpec) -> None:
        num_tokens, limit = len(spec.prompt_token_ids), self.max_model_len - 1
        if spec.pooling is not None:
            limit = self.max_model_len
            if self.is_whole(spec):
                limit = min(limit, self.scheduler.max_num_batched_tokens)
            if not 1 <= num_tokens <= limit:
                allowed = f"1 to {limit} tokens, which max_model_len and max_num_batched_tokens allow"
                raise InvalidRequestError("prompt", f"{num_tokens} tokens", allowed)
            return
        if not 1 <= num_tokens <= limit:
            allowed = f"1 to {limit} tokens, one less than max_model_len"
            raise InvalidRequestError("prompt", f"{num_tokens} tokens", allowed)
        most = min(limit - num_tokens, (spec.params.max_tokens or self.max_model_len) - 1)
        for one in spec.resumed:
            if not 1 <= len(one.token_ids) <= most:
                allowed = f"1 to {most} tokens, fewer than max_tokens and max_model_len leave"
                raise InvalidRequestError("resumed", f"{len(one.token_ids)} tokens", allowed)

    def _check_embeds(self, spec: RequestSpec) -> None:
        check_places(spec.prompt_embeds, len(spec.prompt_token_ids))
        for one in spec.prompt_embeds:
            if one.hidden_size != self.embedding_size:
                allowed = f"{self.embedding_size}, the width of the model's embeddings"
                if not self.embedding_size:
                    allowed = "none: this model takes token ids alone"
                raise InvalidRequestError("prompt_embeds.hidden_size", one.hidden_size, allowed)

    def _check_logprobs(self, field_name: str, value: int | None) -> None:
        most = min(self.vocab_size, MAX_LOGPROBS)
        if (self.vocab_size if value == -1 else value or 0) > most:
            lowest = -1 if most == self.vocab_size else 0
            raise InvalidRequestError(field_name, value, f"{lowest} to {most}")


def _token_ids(spec: RequestSpec) -> Iterator[tuple[str, Collection[int]]]:
    """Token ids that a request names, by field."""
    params = spec.params
    yield "prompt_token_ids", spec.prompt_token_ids
    for one in spec.resumed:
        yield "resumed", one.token_ids
    yield "stop_token_ids", params.stop_token_ids
    yield "allowed_token_ids", params.allowed_token_ids or ()
    yield "logprob_token_ids", params.logprob_token_ids or ()
    yield "logit_bias", params.logit_bias or ()
    yield "bad_words", [token_id for word in spec.bad_words for token_id in word]
    if spec.thinking is not None:
        yield "thinking", spec.thinking.start_token_ids + spec.thinking.end_token_ids
