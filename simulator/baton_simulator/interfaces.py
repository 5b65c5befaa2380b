"""Interfaces between the parts of a simulated cluster: each names what one part uses of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Protocol

from baton_core.sessions.worker_info import WorkerInfo
from baton_core.worker.step_plan import StepPlan, StepResult
from baton_core.worker.worker_events import BlockPull, WorkerEvent
from baton_simulator.clock import Action, Clock
from baton_simulator.conditions import Conditions
from baton_simulator.event_log import EventLog
from baton_simulator.network import Network, Receiver, Stream
from baton_worker.core.worker_core import WorkerCore


class Engine(Protocol):
    """The engine of a worker: hashes, or a real model and a real connector."""

    num_ranks: int
    """Ranks that copy a part of each block."""

    def execute(self, plan: StepPlan) -> StepResult: ...

    def checksum(self, block_id: int) -> int: ...

    def pull(self, blocks: tuple[BlockPull, ...], source: Any) -> tuple[int, ...]:
        """Copy blocks out of the pool of `source`, of its kind; returns local blocks that are not right."""
        ...


class Surroundings(Protocol):
    """The part of a cluster that its nodes use."""

    seed: int
    conditions: Conditions
    clock: Clock
    log: EventLog
    coverage: Counter[str]
    network: Network

    @property
    def workers(self) -> Mapping[str, WorkerNode]: ...

    @property
    def routers(self) -> Iterable[str]:
        """The names of the routers."""
        ...

    def dial(self, worker: str, router: str, receive: Receiver) -> Stream:
        """Open a stream from a worker to the router that has that name now."""
        ...


class SessionOwner(Protocol):
    """The part of a node that its sessions use."""

    name: str

    @property
    def now(self) -> float: ...


class WorkerNode(SessionOwner, Protocol):
    """The part of a worker that its copies, its lease checks, its router links and its peers use."""

    info: WorkerInfo
    core: WorkerCore
    engine: Engine
    rng: Random
    cluster: Surroundings
    is_alive: bool

    def take(self, action: Action) -> None: ...

    def after(self, delay_s: float, action: Action) -> None: ...

    def on_event(self, event: WorkerEvent) -> None: ...

    def handle(self, event: WorkerEvent) -> None: ...

    def settle(self) -> None: ...

    def arm(self) -> None: ...
