"""A simulated cluster whose workers are put together as production does it, around one model folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.worker_info import Role
from baton_core.worker.speculative_config import SpeculativeConfig
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.models.registry import read_model_config
from baton_engine.sizing import KVCacheSettings
from baton_kv.connector import KVConnector
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_kv.shared_memory import SharedMemoryConnector
from baton_kv.tcp import TcpConnector
from baton_prefill.core.lease_table import LeaseTimings
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.router_events import FinishRequest
from baton_simulator.cluster import Cluster
from baton_simulator.conditions import Conditions, LinearCost
from baton_simulator.outcome import Outcome
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.speculation.speculation import MakeDrafter, Speculation
from baton_worker.pool_placement import PoolPlacement
from baton_worker.worker_process import WorkerSettings, worker_config, worker_info
from tests.reference import Job
from tests.sim.checks import check_clean, check_finished
from tests.sim.torch_engine import TorchEngine

Backend = Literal["in_process", "shared_memory", "tcp"]
EPOCH: Final = 7
STEP_COST: Final = LinearCost(base_s=0.005, per_token_s=0.0)
"""Slow for a decode, so that many sequences decode beside one another and some are preempted."""
ROLES: Final = {"p": Role.PREFILL, "d": Role.DECODE, "m": Role.MIXED}
LONGEST_WAIT_S: Final = LeaseTimings().hold_s + 1.0
"""After this time without requests nothing is held; a Release that overtakes its Subscribe costs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of every worker of a cluster."""

    num_blocks: int = 160
    block_size: int = 32
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    max_model_len: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    async_scheduling: bool = False
    logits_processors: tuple[str, ...] = ()


DEFAULT_SHAPE: Final = Shape()


class TorchCluster:
    """With a backend: workers `p` and `d`, every request split. Without: one mixed worker `m`, none split.

    Each name of `others` is one more worker, of the role that it begins with.

    Pools start as NaN, so that whoever reads what nobody wrote is found out. A context manager: it closes
    the connectors.
    """

    def __init__(
        self,
        folder: Path,
        backend: Backend | None,
        shape: Shape = DEFAULT_SHAPE,
        *,
        pull_delay_s: float = 0.02,
        others: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._shape = shape
        self._registry = InProcessRegistry()
        self._exits = ExitStack()
        self.engines: dict[str, TorchEngine] = {}
        split = SplitMode.ALWAYS if backend else SplitMode.NEVER
        router = RouterConfig(limits=FlowLimits(placement=PlacementConfig(split=split)))
        delays_s = (pull_delay_s / 2, pull_delay_s)
        self.sim = Cluster(0, router=router, conditions=Conditions(pull_delays_s=delays_s, cost=STEP_COST))
        for worker_id in (*(("p", "d") if backend else ("m",)), *others):
            self._start_worker(worker_id, ROLES[worker_id[0]], backend or "in_process")
        self.sim.run_until_joined()

    def __enter__(self) -> TorchCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    @property
    def num_preemptions(self) -> int:
        return sum(worker.core.scheduler.num_preemptions for worker in self.sim.workers.values())

    def speculate(self, config: SpeculativeConfig, make_drafter: MakeDrafter) -> None:
        """Let every worker draft tokens from now on."""
        for worker in self.sim.workers.values():
            max_model_len = worker.core.config.max_model_len
            worker.core.scheduler.speculation = Speculation(config, max_model_len, make_drafter)

    @property
    def num_accepted_tokens(self) -> int:
        """Drafted tokens that were right, of all workers that are there."""
        workers = self.sim.workers.values()
        return sum(worker.core.scheduler.speculation.counts.num_accepted_tokens for worker in workers)

    def submit(self, spec: RequestSpec, *, delay_s: float = 0.0) -> None:
        self.sim.clock.after(delay_s, lambda: self.sim.router.submit(spec, timeout_s=600.0))

    def serve(self, specs: Sequence[RequestSpec], *, spread_s: float = 0.02) -> list[Outcome]:
        """Submit requests within `spread_s`, run them to their ends, and return what their clients saw."""
        for spec in specs:
            self.submit(spec, delay_s=self.sim.rng.uniform(0, spread_s))
        self.run_to_end(spread_s)
        return [self.sim.router.outcomes[spec.request_id] for spec in specs]

    def serve_jobs(self, jobs: Sequence[Job]) -> list[FinishRequest]:
        """Serve requests at once and check their tokens; returns their ends."""
        outcomes = self.serve([job.spec for job in jobs])
        return [check_finished(outcome, job.expected) for outcome, job in zip(outcomes, jobs, strict=True)]

    def run_to_end(self, at_least_s: float) -> None:
        """Run until every request is over and every lease has ended or run out; nothing may be left."""
        clock, router = self.sim.clock, self.sim.router
        clock.run(clock.now + at_least_s)
        limit_s = clock.now + 300.0
        while not all(outcome.ends for outcome in router.outcomes.values()):
            assert clock.now < limit_s, "a request does not end"
            clock.run(clock.now + 0.5)
        clock.run(clock.now + LONGEST_WAIT_S)
        check_clean(self.sim)

    def _start_worker(self, worker_id: str, role: Role, backend: Backend) -> None:
        placement = PoolPlacement(lambda spec: self._make_connector(spec, backend))
        settings = self._settings(role)
        engine = load_model(settings.engine).start(placement.allocate)
        engine.runner.kv_pool.fill_(torch.nan)
        connector = placement.connector
        assert connector is not None
        self._exits.callback(connector.close)
        config = worker_config(settings, engine, connector.capabilities, worker_id, EPOCH)
        info = worker_info(role, config, worker_id, connector.describe())
        self.engines[worker_id] = TorchEngine(worker_id, EPOCH, engine.runner, connector)
        self.sim.start(info, config, self.engines[worker_id])

    def _make_connector(self, spec: KVSpec, backend: Backend) -> KVConnector:
        match backend:
            case "in_process":
                return InProcessConnector(spec, EPOCH, self._registry)
            case "shared_memory":
                return SharedMemoryConnector(spec, EPOCH)
            case "tcp":
                return TcpConnector(spec, EPOCH)

    def _settings(self, role: Role) -> WorkerSettings:
        shape = self._shape
        block_bytes = read_model_config(self._folder).kv_spec(shape.block_size, "float32").block_bytes
        kv_cache = KVCacheSettings(
            kv_cache_memory_bytes=shape.num_blocks * block_bytes,
            max_model_len=shape.max_model_len,
            max_num_batched_tokens=shape.max_num_batched_tokens,
        )
        return WorkerSettings(
            role=role,
            engine=EngineSettings(
                model=str(self._folder),
                dtype="float32",
                quantization=shape.quantization,
                kv_cache_dtype=shape.kv_cache_dtype,
                async_scheduling=shape.async_scheduling,
                block_size=shape.block_size,
                kv_cache=kv_cache,
                logits_processors=shape.logits_processors,
            ),
            routers=("simulated",),
            scheduler=SchedulerConfig(
                max_num_seqs=shape.max_num_seqs, max_num_batched_tokens=shape.max_num_batched_tokens
            ),
        )
