"""A run of a fleet whose workers come and go by a rule, each after the time that a start takes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from baton_core.requests.request_context import Slo
from baton_core.sessions.worker_info import Role
from baton_core.worker.worker_events import Drain
from baton_router.core.fleet.role_pressure import Waiting, Worker, role_of
from baton_router.core.fleet.scaling import ROLES, Scaling, ScalingConfig
from baton_router.core.router_events import WorkerLeft
from baton_simulator.capacity.fleet_run import FleetPlan, FleetRun
from baton_simulator.capacity.request_result import RequestResult
from baton_simulator.capacity.workload import Ask

SAMPLE_S: Final = 2.0
"""Between two samples of the workers, as a router takes them."""
_LOOK_S: Final = 1.0
"""Between two looks at a worker that drains."""
_LETTERS: Final = {Role.PREFILL: "P", Role.DECODE: "D"}


class ScalingRule(Protocol):
    """Says how many workers each role should have, from samples of the fleet."""

    def sample(self, now: float, workers: Sequence[Worker], waiting: Waiting) -> Mapping[Role, int]: ...


class ByNeed:
    """The router's own recommendation."""

    def __init__(self, slo: Slo) -> None:
        self._scaling = Scaling(ScalingConfig(slo=slo))

    def sample(self, now: float, workers: Sequence[Worker], waiting: Waiting) -> Mapping[Role, int]:
        recommended = self._scaling.sample(now, workers, waiting)
        return {one.role: one.num_desired for one in recommended if one.role in ROLES}


class ByQueue:
    """As many workers of a role as its waiting requests over a threshold, the most of the last `down_s`."""

    def __init__(self, threshold: float = 5.0, down_s: float = 300.0) -> None:
        self._threshold = threshold
        self._down_s = down_s
        self._last: deque[tuple[float, dict[Role, int]]] = deque()

    def sample(self, now: float, workers: Sequence[Worker], waiting: Waiting) -> Mapping[Role, int]:
        queued = dict.fromkeys(ROLES, waiting.num_requests)
        for worker in workers:
            queued[role_of(worker)] += worker[1].num_waiting + worker[1].num_deferred
        desired = {role: max(1, math.ceil(queued[role] / self._threshold)) for role in ROLES}
        self._last.append((now, desired))
        while self._last[0][0] < now - self._down_s:
            self._last.popleft()
        return {role: max(one[role] for _, one in self._last) for role in ROLES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPlan:
    """When workers are added and removed."""

    max_workers: Mapping[Role, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 16))
    start_s: float = 120.0
    """Time from the decision until a worker serves."""
    every_s: float = 15.0
    """Time between two decisions."""


class ScaledRun(FleetRun):
    """Starts with the workers of the plan. A worker that is removed ends what it has before it goes."""

    def __init__(self, plan: FleetPlan, asks: Sequence[Ask], rule: ScalingRule, scaling: ScalingPlan) -> None:
        super().__init__(plan, asks)
        self.counts: list[tuple[float, int, int]] = []
        """Time, and workers of both roles that serve or start, at each decision."""
        self._rule = rule
        self._scaling = scaling
        self._desired: Mapping[Role, int] = {}
        self._num_started = {Role.PREFILL: plan.mix.prefill, Role.DECODE: plan.mix.decode}
        self._began: dict[str, float] = {}
        """When each worker began to cost, by name."""
        self._ended: dict[str, float] = {}
        self._starting: dict[Role, int] = dict.fromkeys(ROLES, 0)
        self._draining: set[str] = set()

    def run(self) -> list[RequestResult]:
        self._began = dict.fromkeys(self.plan.mix.names(), self.clock.now)
        self.clock.after(SAMPLE_S, self._sample)
        self.clock.after(self._scaling.every_s, self._decide)
        return super().run()

    @property
    def worker_hours(self) -> float:
        """Sum of the times of all workers, starts and drains included."""
        ends = {name: self._ended.get(name, self.clock.now) for name in self._began}
        return sum(ends[name] - began for name, began in self._began.items()) / 3600

    def _sample(self) -> None:
        core = self.router.core
        self._desired = self._rule.sample(self.clock.now, core.fleet.workers(), core.waiting)
        self.clock.after(SAMPLE_S, self._sample)

    def _decide(self) -> None:
        for role, desired in self._desired.items():
            wanted = min(desired, self._scaling.max_workers[role])
            serving = self._serving(role)
            for _ in range(wanted - len(serving) - self._starting[role]):
                self._add(role)
            for name in serving[max(1, wanted) :]:
                self._remove(name)
        counts = [len(self._serving(role)) + self._starting[role] for role in ROLES]
        self.counts.append((self.clock.now, counts[0], counts[1]))
        self.clock.after(self._scaling.every_s, self._decide)

    def _serving(self, role: Role) -> list[str]:
        """Return the workers of a role that stay, those with the least work last."""
        alive = [
            worker
            for name, worker in self.workers.items()
            if worker.is_alive and worker.info.role is role and name not in self._draining
        ]
        alive.sort(key=lambda worker: -worker.core.open_work.num_requests)
        return [worker.info.worker_id for worker in alive]

    def _add(self, role: Role) -> None:
        name = f"{_LETTERS[role]}{self._num_started[role]}"
        self._num_started[role] += 1
        self._starting[role] += 1
        self._began[name] = self.clock.now
        self.clock.after(self._scaling.start_s, partial(self._join, name, role))

    def _join(self, name: str, role: Role) -> None:
        self._starting[role] -= 1
        self._start(name, role, first_tick_s=0.0)

    def _remove(self, name: str) -> None:
        self._draining.add(name)
        self.workers[name].on_event(Drain())
        self.clock.after(_LOOK_S, partial(self._look, name))

    def _look(self, name: str) -> None:
        """Let a worker go once it has reported that it drains, and has nothing left."""
        worker = self.workers[name]
        if worker.core.open_work:
            self.clock.after(_LOOK_S, partial(self._look, name))
            return
        worker.is_alive = False
        self._ended[name] = self.clock.now
        self.router.on_event(WorkerLeft(worker_id=name, reason="it was removed"))
