"""Routers and workers in one thread under a virtual clock: the production cores, and a seed that decides.

After every event the invariants of the node that took it are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from baton_core.sessions.worker_info import WorkerInfo
from baton_router.core.flow.router_core import RouterConfig
from baton_simulator.clock import Clock, NodeClock
from baton_simulator.conditions import USUAL, Conditions, StepCost
from baton_simulator.event_log import EventLog
from baton_simulator.interfaces import Engine
from baton_simulator.network import Network, Receiver, Stream
from baton_simulator.node import Node
from baton_simulator.sim_router import SimRouter
from baton_simulator.sim_worker import SimWorker
from baton_worker.core.worker_config import WorkerConfig

EXACT: Final = NodeClock()
_LOOK_EVERY_S: Final = 0.01


class Cluster:
    """Members come and go while it runs.

    Args:
        routers: names; each is started at once, with the first life's epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        router: RouterConfig,
        routers: Sequence[str] = ("r",),
        conditions: Conditions = USUAL,
    ) -> None:
        self.seed = seed
        self.conditions = conditions
        self.clock = Clock()
        self.rng = Random(f"{seed}/cluster")
        self.log = EventLog(self.clock)
        self.coverage: Counter[str] = Counter()
        """Events by name: a simulation that meets no faults shows nothing."""
        self.network = Network(self.clock, Random(f"{seed}/network"), conditions.weather)
        self.workers: dict[str, SimWorker] = {}
        self.routers: dict[str, SimRouter] = {}
        self.streams: list[Stream] = []
        """Streams that are not cut."""
        self._router_config = router
        for name in routers:
            self.start_router(name)

    @property
    def router(self) -> SimRouter:
        """The first one."""
        return next(iter(self.routers.values()))

    def node(self, name: str) -> Node:
        return self.workers.get(name) or self.routers[name]

    def start(
        self,
        info: WorkerInfo,
        config: WorkerConfig,
        engine: Engine,
        clock: NodeClock = EXACT,
        cost: StepCost | None = None,
    ) -> SimWorker:
        """Start a worker, in the place of an earlier one of its name; `cost` is that of its steps."""
        cost = cost or self.conditions.cost
        worker = self.workers[info.worker_id] = SimWorker(self, info, config, engine, clock, cost)
        self.log.add(worker.name, "starts", f"epoch {info.epoch}")
        for link in worker.links:
            link.dial()
        return worker

    def start_router(self, name: str, *, epoch: int = 1, clock: NodeClock = EXACT) -> SimRouter:
        """Start a router, in the place of an earlier one of its name; epochs leave room to count up."""
        mark = name if epoch > 1 or self.routers else ""
        limits = replace(self._router_config.limits, router_name=f"{mark}{epoch}" if mark else "")
        config = replace(self._router_config, limits=limits)
        router = self.routers[name] = SimRouter(self, name, clock, config, epoch=epoch)
        self.log.add(name, "starts", f"epoch {epoch}")
        return router

    def run_until_joined(self, within_s: float = 5.0) -> None:
        """Let time pass until every router has a session with every worker."""
        limit_s = self.clock.now + within_s
        while any(router.sessions.keys() != self.workers.keys() for router in self.routers.values()):
            assert self.clock.now < limit_s, f"a worker did not join within {within_s:g} s"
            self.clock.run(self.clock.now + _LOOK_EVERY_S)

    def crash(self, name: str) -> None:
        self.log.add(name, "crashes")
        self.coverage["crashes"] += 1
        self.node(name).crash()

    def dial(self, worker: str, router: str, receive: Receiver) -> Stream:
        """Open a stream from a worker to the router that has that name now."""
        target = self.routers[router]
        stream = Stream(self.clock, self.network, worker, receive, router, target.on_frame)
        self.streams = [one for one in self.streams if not one.is_cut]
        self.streams.append(stream)
        if not target.is_alive:
            self.clock.after(self.network.delay_s(), stream.break_)
        return stream
