"""The metrics of a worker: counted as its shell sees them, read from its core at each scrape.

All of it on the worker's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from baton_core.distribution import Distribution
from baton_core.requests.attempt_names import is_probe
from baton_core.requests.phases import PhaseName, PhaseReport
from baton_core.sessions.router_messages import ToRouter, Transferred
from baton_core.sessions.worker_info import MAX_REPORTED_ADAPTERS, BucketCounts, EngineFigures
from baton_core.step_work import StepWork
from baton_core.worker.step_plan import StepPlan
from baton_service import vllm_metrics as vllm
from baton_service.exposition import Exposition, counter, gauge
from baton_service.redis.shared_state import SharedState
from baton_service.redis.shared_state_metrics import FAMILIES as SHARED_FAMILIES
from baton_service.redis.shared_state_metrics import report_shared_state
from baton_service.work_done import WorkDone
from baton_worker.core.worker_core import WorkerCore
from baton_worker.first_pulls import FirstPull

SESSIONS: Final = gauge("baton_sessions", "Routers that this worker serves now", "worker")
REFUSALS: Final = gauge(
    "baton_session_refusals", "Routers that refuse this worker now; its log and /health say why", "worker"
)
FAULTY: Final = gauge(
    "baton_worker_faulty",
    "1 while this worker takes no requests: it has lost track of its blocks, or its steps fail in a row",
    "worker",
)
FIRST_PULL: Final = gauge(
    "baton_first_pull_bytes_per_second",
    "Of the first copy from another worker, and what this machine does at its best",
    "worker",
    "source",
    "transport",
    "figure",
)
BLOCKS: Final = gauge("baton_kv_blocks", "KV blocks by state", "worker", "state")
LEASES_OPEN: Final = gauge("baton_leases_open", "Prompts offered to other workers", "worker")
LEASES_EXPIRED: Final = counter(
    "baton_leases_expired",
    "Offers that ended by time: a consumer fell silent, or none came",
    "worker",
    "cause",
)
TRANSFERS_OPEN: Final = gauge("baton_transfers_open", "Pulls from other workers now", "worker")
RECOMPUTED: Final = counter(
    "baton_recomputed_tokens", "Prompt tokens computed again because they were lost", "worker"
)
FAILED_STEPS: Final = counter(
    "baton_worker_failed_steps", "Steps that ended in an error of the engine", "worker"
)
BROKEN_SEQUENCES: Final = counter(
    "baton_worker_not_finite_logits",
    "Sequences that ended because the model's logits were NaN or infinite",
    "worker",
)
FAMILIES: Final = (
    *vllm.ENGINE_FAMILIES,
    *(
        SESSIONS,
        REFUSALS,
        FAULTY,
        FAILED_STEPS,
        BROKEN_SEQUENCES,
        FIRST_PULL,
        BLOCKS,
        LEASES_OPEN,
        LEASES_EXPIRED,
        TRANSFERS_OPEN,
        RECOMPUTED,
    ),
    *SHARED_FAMILIES,
)


class WorkerMetrics:
    """The metrics of one worker. Its shell keeps its public fields."""

    def __init__(self, model_name: str, core: WorkerCore, shared: SharedState | None = None) -> None:
        self.num_sessions = 0
        self.refusals: Callable[[], Sequence[str]] = tuple
        """Gives a line for each router that refuses this worker now, with the reason."""
        self.unreachable: Callable[[], Sequence[str]] = tuple
        """Gives a line for each router that cannot be reached now, with the reason."""
        self.first_pulls: Mapping[str, FirstPull] = {}
        self._engine = (model_name, core.config.worker_id)
        self._core = core
        self._shared = shared
        self._iteration_tokens = Distribution(vllm.STEP_BOUNDS)
        self._step_work = StepWork()
        self._transfer_s = Distribution(vllm.TRANSFER_BOUNDS)
        self._transfer_bytes = Distribution(vllm.BYTES_BOUNDS)
        self._transfer_blocks = Distribution(vllm.DESCRIPTORS_BOUNDS)
        self._num_failed_transfers = 0
        self._work = WorkDone()
        self._num_remote_queried = 0

    @property
    def problem(self) -> str:
        """The reason why no router gives it work; empty while one may."""
        status = self._core.controls.status
        if status.fault:
            return f"faulty: {status.fault}"
        return "" if self.num_sessions else "; ".join((*self.refusals(), *self.unreachable())) or "no router"

    @property
    def why_not_ready(self) -> str:
        """The reason why this worker takes no new requests; empty while it does."""
        if self.problem:
            return self.problem
        controls = self._core.controls
        states = {
            "drains": controls.status.is_draining,
            "sleeps": controls.is_asleep,
            "is paused": controls.is_paused,
        }
        return next((f"the worker {state}" for state, is_so in states.items() if is_so), "")

    def on_step(self, plan: StepPlan) -> None:
        """Count a step that begins, unless it computes routers' probes alone."""
        if not all(is_probe(piece.seq_id.request_id) for piece in plan.slices):
            self._iteration_tokens.add(sum(len(piece.token_ids) for piece in plan.slices))
            if (model := self._core.config.metrics.model_work) is not None:
                self._step_work += model.of_step(plan.slices)

    def on_message(self, message: ToRouter) -> None:
        """Count what a message to a router says of a transfer, or of a request that is done."""
        match message:
            case Transferred() | PhaseReport() if is_probe(message.request_id):
                pass
            case Transferred(num_recomputed_tokens=num_recomputed_tokens):
                self._num_failed_transfers += num_recomputed_tokens > 0
            case PhaseReport():
                self._on_report(message)
            case _:
                pass

    @property
    def figures(self) -> EngineFigures:
        """The figures that heartbeats report to routers."""
        core, work, drafts = self._core, self._work, self._core.scheduler.speculation.counts
        residency = core.pool.residency
        waiting = core.scheduler.adapters(is_running=False) | core.preparations.adapters.waiting_names
        return EngineFigures(
            sleep_level=core.controls.sleep_level,
            num_queried_tokens=core.pool.cache.num_queried_tokens,
            num_hit_tokens=core.pool.cache.num_hit_tokens,
            num_computed_tokens=work.num_computed + work.num_recomputed,
            num_cached_tokens=work.num_local_cache,
            num_remote_tokens=work.num_remote,
            num_remote_queried_tokens=self._num_remote_queried,
            num_preemptions=core.scheduler.num_preemptions,
            step_counts=self._iteration_tokens.counts,
            num_step_tokens=int(self._iteration_tokens.total),
            num_drafts=drafts.num_drafts,
            num_draft_tokens=drafts.num_draft_tokens,
            num_accepted_tokens=drafts.num_accepted_tokens,
            num_accepted_per_position=tuple(drafts.num_accepted_per_position),
            max_loras=core.config.scheduler.max_loras if core.config.max_cpu_loras else 0,
            waiting_adapters=tuple(sorted(waiting))[:MAX_REPORTED_ADAPTERS],
            running_adapters=tuple(sorted(core.scheduler.adapters(is_running=True))),
            block_residency=tuple(
                BucketCounts(counts=one.counts, total=one.total)
                for one in (() if residency is None else residency.distributions)
            ),
            work=self._step_work if core.config.metrics.model_work else None,
        )

    def exposition(self) -> Exposition:
        """The current samples."""
        page = Exposition(FAMILIES)
        self._tell_engine(page)
        self._tell_transfers(page)
        self._tell_blocks(page)
        report_shared_state(page, self._core.config.worker_id, self._shared)
        return page

    def _on_report(self, report: PhaseReport) -> None:
        self._work.add(report)
        transfers = [phase for phase in report.phases if phase.name is PhaseName.TRANSFER]
        if transfers:
            sources = report.sources
            self._num_remote_queried += sources.num_computed + sources.num_remote + sources.num_recomputed
            num_bytes = sum(transfer.num_bytes for transfer in transfers)
            self._transfer_s.add(sum(transfer.end_s - transfer.start_s for transfer in transfers))
            self._transfer_bytes.add(num_bytes)
            self._transfer_blocks.add(num_bytes / self._core.config.kv_spec.block_bytes)

    def _tell_engine(self, page: Exposition) -> None:
        core, engine, config = self._core, self._engine, self._core.config
        page.add(vllm.NUM_RUNNING, core.scheduler.num_running, *engine)
        vllm.report_waiting(page, engine, core.scheduler.num_waiting, core.num_deferred)
        page.add(vllm.KV_USAGE, core.pool.num_used / core.pool.num_blocks, *engine)
        cache = (str(config.identity.block_size), str(config.num_blocks), config.identity.dtype)
        page.add(vllm.CACHE_CONFIG, 1, *engine, *cache, str(config.enable_prefix_caching))
        vllm.report_figures(page, engine, self.figures)

    def _tell_transfers(self, page: Exposition) -> None:
        leases, engine, worker_id = self._core.leases, self._engine, self._core.config.worker_id
        page.add(vllm.XFER_TIME, self._transfer_s, *engine)
        page.add(vllm.XFER_BYTES, self._transfer_bytes, *engine)
        page.add(vllm.XFER_DESCRIPTORS, self._transfer_blocks, *engine)
        page.add(vllm.XFER_FAILED, self._num_failed_transfers, *engine)
        page.add(vllm.XFER_EXPIRED, leases.num_expired + leases.num_unclaimed, *engine)
        page.add(LEASES_OPEN, leases.num_open, worker_id)
        page.add(LEASES_EXPIRED, leases.num_expired, worker_id, "silent")
        page.add(LEASES_EXPIRED, leases.num_unclaimed, worker_id, "unclaimed")
        page.add(TRANSFERS_OPEN, self._core.kv_pulls.num_transfers, worker_id)
        page.add(RECOMPUTED, self._work.num_recomputed, worker_id)
        page.add(SESSIONS, self.num_sessions, worker_id)
        page.add(REFUSALS, len(self.refusals()), worker_id)
        for source, first in self.first_pulls.items():
            page.add(FIRST_PULL, first.bytes_per_s, worker_id, source, first.transport, "measured")
            page.add(FIRST_PULL, first.expected_bytes_per_s, worker_id, source, first.transport, "expected")
        page.add(FAULTY, bool(self._core.controls.status.fault), worker_id)
        page.add(FAILED_STEPS, self._core.health.num_failed_steps, worker_id)
        page.add(BROKEN_SEQUENCES, self._core.health.num_broken_sequences, worker_id)

    def _tell_blocks(self, page: Exposition) -> None:
        pool = self._core.pool
        blocks = {
            "free": pool.num_free,
            "cached": pool.num_cached,
            "quarantined": pool.num_quarantined,
            "in_use": pool.num_used - pool.num_quarantined,
        }
        for state, count in blocks.items():
            page.add(BLOCKS, count, self._core.config.worker_id, state)
