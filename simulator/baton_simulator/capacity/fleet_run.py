"""One run of a workload through a fleet: the production cores of one router and of its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.model.model_identity import ModelIdentity
from baton_core.requests.request_context import Slo
from baton_core.sessions.router_messages import ToRouter, ToWorker
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad
from baton_core.worker.worker_events import FromRouter, RouterJoined, WorkerEvent
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.router_events import FromWorker, WorkerJoined, WorkerLeft, WorkerReported
from baton_simulator.capacity.hardware import Hardware
from baton_simulator.capacity.request_result import RequestResult
from baton_simulator.capacity.simulated_router import SimulatedRouter
from baton_simulator.capacity.simulated_worker import GENERATED, HEARTBEAT_S, Link, SimulatedWorker
from baton_simulator.capacity.worker_mix import WorkerMix
from baton_simulator.capacity.workload import Ask
from baton_simulator.clock import Clock
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.worker_config import WorkerConfig

START_S: Final = -1.0
"""When the fleet starts: by the time of the first request every worker has reported."""
DEAD_AFTER_S: Final = 1.5
"""Silence after which a router gives up a worker: that of its sessions."""
_DTYPE: Final = "bfloat16"
_ROUTER: Final = "router"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Workers that are gone from one moment on."""

    workers: tuple[str, ...]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The simulated fleet and its settings."""

    mix: WorkerMix
    names: Mapping[str, Role] = field(default_factory=dict)
    """Names of the workers, on which some policies decide, with their roles; none: those of `mix`."""
    hardware: Hardware
    block_size: int = 32
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    tokens_per_step: int = 1
    """Tokens that a decode stands for, an answer's last one for those that are left: fewer events, less
    exact."""
    heartbeat_s: float = HEARTBEAT_S
    """Time between two reports of a worker, and two looks at its deadlines."""
    message_s: float = 0.0005
    """Delay from one process to another, clients included."""
    slo: Slo = field(default_factory=Slo)
    """The latencies that requests ask for; the router refuses a request that cannot meet them."""
    loss: Loss | None = None


class FleetRun:
    """Owns the virtual time. Equal plans and workloads give equal results."""

    def __init__(self, plan: FleetPlan, asks: Sequence[Ask]) -> None:
        self.clock = Clock()
        self.clock.now = START_S
        self.plan = plan
        self.workers: dict[str, SimulatedWorker] = {}
        self.router = SimulatedRouter(
            self.clock,
            plan.router,
            self._command,
            message_s=plan.message_s,
            slo=plan.slo,
            tokens_per_step=plan.tokens_per_step,
        )
        self.num_tokens, self.computed = self.router.num_tokens, self.router.computed
        self._num_asks = len(asks)
        self._asks: Iterator[Ask] = iter(asks)
        self._longest = max((ask.num_prompt_tokens + ask.num_tokens for ask in asks), default=1)

    def run(self) -> list[RequestResult]:
        """Send every request when it is due, and go on until each has ended."""
        names = self.plan.names or self.plan.mix.names()
        for number, (name, role) in enumerate(names.items()):
            self._start(name, role, first_tick_s=HEARTBEAT_S * number / len(names))
        if self.plan.loss is not None:
            delay_s = self.plan.loss.at_s - self.clock.now
            self.clock.after(delay_s, partial(self._lose, self.plan.loss))
        self._await_next()
        while self.router.num_ended < self._num_asks:
            self.clock.run(self.clock.now + HEARTBEAT_S)
        return list(self.router.results.values())

    # --- what workers are connected to ---

    def to_router(self, worker_id: str, message: ToRouter) -> None:
        said = FromWorker(worker_id=worker_id, message=message)
        self.clock.after(self.plan.message_s, partial(self.router.on_event, said))

    def report(self, worker_id: str, load: WorkerLoad) -> None:
        reported = WorkerReported(worker_id=worker_id, load=load)
        self.clock.after(self.plan.message_s, partial(self.router.on_event, reported))

    def to_worker(self, worker_id: str, event: WorkerEvent) -> None:
        self.clock.after(self.plan.message_s, partial(self.workers[worker_id].on_event, event))

    def link_of(self, worker_id: str) -> Link | None:
        worker = self.workers[worker_id]
        return worker.link if worker.is_alive else None

    # --- parts ---

    def _command(self, worker_id: str, message: ToWorker) -> None:
        self.to_worker(worker_id, FromRouter(router_id=_ROUTER, message=message))

    def _await_next(self) -> None:
        """One request at a time, so that only those under way have their prompts in memory."""
        if (ask := next(self._asks, None)) is not None:
            due_s = ask.at_s + self.plan.message_s
            self.clock.after(max(0.0, due_s - self.clock.now), partial(self._submit, ask))

    def _submit(self, ask: Ask) -> None:
        self._await_next()
        self.router.submit(ask)

    def _start(self, name: str, role: Role, *, first_tick_s: float) -> None:
        config, info = _describe(self.plan, name, role, self._longest)
        link = Link(bytes_per_s=self.plan.hardware.link_bytes_per_s)
        worker = SimulatedWorker(self, info, config, self.plan.hardware.cost, link, self.plan.heartbeat_s)
        self.workers[name] = worker
        self.router.on_event(WorkerJoined(info=info))
        worker.on_event(RouterJoined(router_id=_ROUTER))
        self.clock.after(first_tick_s, worker.tick)

    def _lose(self, loss: Loss) -> None:
        for name in loss.workers:
            self.workers[name].is_alive = False
            left = WorkerLeft(worker_id=name, reason="it was lost")
            self.clock.after(DEAD_AFTER_S, partial(self.router.on_event, left))


def _describe(plan: FleetPlan, name: str, role: Role, longest: int) -> tuple[WorkerConfig, WorkerInfo]:
    """A worker that has room for the longest request, if its cache has."""
    head_dim = -(-plan.hardware.kv_bytes_per_token // 4)
    spec = KVSpec(num_layers=1, num_kv_heads=1, head_dim=head_dim, block_size=plan.block_size, dtype=_DTYPE)
    num_blocks = max(1, plan.hardware.num_kv_tokens // plan.block_size)
    identity = ModelIdentity(
        weights="simulated",
        dtype=_DTYPE,
        block_size=plan.block_size,
        kv_layout=spec.layout,
        transport="simulated",
    )
    config = WorkerConfig(
        worker_id=name,
        epoch=1,
        identity=identity,
        kv_spec=spec,
        num_blocks=num_blocks,
        max_model_len=min(longest + 1, num_blocks * plan.block_size),
        vocab_size=GENERATED + 1,
        eos_token_ids=frozenset(),
        is_verified_by_checksum=True,
        scheduler=plan.scheduler,
    )
    info = WorkerInfo(
        worker_id=name,
        epoch=1,
        role=role,
        identity=identity,
        max_model_len=config.max_model_len,
        vocab_size=config.vocab_size,
        num_blocks=num_blocks,
        max_num_seqs=plan.scheduler.max_num_seqs,
        peer_address=name,
        kv_description=b"",
        block_bytes=spec.block_bytes,
    )
    return config, info
