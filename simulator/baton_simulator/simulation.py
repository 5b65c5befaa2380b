"""One run of a scenario: the cluster, its clients, what goes wrong, and what must hold at the end."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_core.worker.worker_events import Leave
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_simulator.cluster import Cluster
from baton_simulator.conditions import Conditions, LinearCost
from baton_simulator.event_log import EventLog
from baton_simulator.hash_engine import expected_tokens
from baton_simulator.members import Shape, start_worker
from baton_simulator.outcome import Outcome
from baton_simulator.scenario import Fault, FaultKind, PlannedRequest, Scenario
from baton_simulator.sim_worker import SimWorker
from baton_simulator.verdict import History, check_outcome, require_clean, require_known

TIMEOUT_S: Final = 30.0
"""Timeout of every request."""
QUEUE_S: Final = 8.0
DECODE_WAIT_S: Final = 3.0
_CALM_S: Final = 4.0
"""After the last fault, until every session is back."""
_SETTLE_S: Final = 12.0
"""After the last request, until nothing is held any more: leases, holds and pulls end."""
_LOOK_EVERY_S: Final = 0.25
_MAX_ACTIONS: Final = 200_000
_INDEX_SHARDS: Final = 16
_SLOW: Final = 8.0
"""A slow rank makes a step take so many times as long."""
_COST: Final = LinearCost(base_s=0.02, per_token_s=0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run."""

    scenario: Scenario
    failure: str
    """Empty if all held."""
    counts: dict[str, int]
    """Number of faults and other events in the run, by name."""
    log: EventLog


def simulate(scenario: Scenario) -> RunResult:
    """Run a scenario to its end, or to the first thing that does not hold."""
    run = _Run(scenario)
    failure = ""
    try:
        run.play()
    except Exception as error:
        failure = str(error) if isinstance(error, AssertionError) and str(error) else _last_lines(error)
        run.cluster.log.add("*", "FAILS:", failure)
    return RunResult(scenario=scenario, failure=failure, counts=run.counts(), log=run.cluster.log)


def _last_lines(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} in {frame.name} ({frame.line})"


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._history = History(
            roles=dict(scenario.topology.workers),
            longest=scenario.longest,
            decode_wait_s=DECODE_WAIT_S,
            is_always_split=scenario.split is SplitMode.ALWAYS,
        )
        self._outcomes: dict[str, Outcome] = {}
        self._epochs: dict[str, int] = {}
        placement = PlacementConfig(split=scenario.split, min_split_tokens=8, headroom_tokens=4)
        limits = FlowLimits(placement=placement, queue_s=QUEUE_S, decode_wait_s=DECODE_WAIT_S)
        self.cluster = Cluster(
            scenario.seed,
            router=RouterConfig(limits=limits, index_shards=_INDEX_SHARDS),
            routers=(),
            conditions=Conditions(
                weather=scenario.weather,
                backend=scenario.backend,
                cost=_COST,
                pull_delays_s=scenario.pull_delays_s,
                num_pieces=3,
            ),
        )
        self._shape = Shape(
            num_blocks=scenario.num_blocks,
            has_checksums=scenario.backend.has_checksums,
            windows=scenario.windows,
            chunk=16,
            garbled=scenario.garbled if scenario.backend.has_checksums else 0.0,
            timings=scenario.timings,
        )
        self._roles = dict(scenario.topology.workers)

    def play(self) -> None:
        """Run it.

        Raises:
            AssertionError: something does not hold.
        """
        scenario, clock = self._scenario, self.cluster.clock
        for name in (*scenario.topology.routers, *self._roles):
            self._start(name)
        for request in scenario.requests:
            clock.after(request.at_s, partial(self._submit, request))
        for fault in scenario.faults:
            clock.after(fault.at_s, partial(self._strike, fault))
        ends = [fault.end_s for fault in scenario.faults] + [one.at_s for one in scenario.requests]
        calm_s = max(ends, default=0.0) + _CALM_S
        clock.after(calm_s, lambda: self._submit(_last_request(scenario.topology.routers[0], calm_s)))
        self._run_until(calm_s + TIMEOUT_S, lambda: clock.now > calm_s and self._are_over())
        self._run_until(clock.now + _SETTLE_S, lambda: not self._is_busy())
        self._require_settled()
        for outcome in self._outcomes.values():
            check_outcome(outcome, self._history)

    def counts(self) -> dict[str, int]:
        coverage = self.cluster.coverage
        for worker in self.cluster.workers.values():
            coverage["preemptions"] += worker.core.scheduler.num_preemptions
            coverage["leases expired"] += worker.core.leases.num_expired
            coverage["offers unclaimed"] += worker.core.leases.num_unclaimed
        for outcome in self._outcomes.values():
            coverage["requests"] += 1
            end = outcome.ends[0] if outcome.ends else None
            code = getattr(end, "code", None)
            coverage[f"requests {'finished' if end and code is None else code or 'without a router'}"] += 1
        return dict(+coverage)

    # --- what happens ---

    def _start(self, name: str) -> None:
        epoch = self._epochs[name] = self._epochs.get(name, 0) + 1
        clock = self._scenario.clocks[name]
        if name in self._roles:
            scenario = self._scenario
            shape = replace(self._shape, longest=scenario.longest[name], sizes=scenario.ranks.get(name))
            start_worker(self.cluster, name, self._roles[name], shape, epoch=epoch, clock=clock)
        else:
            self.cluster.start_router(name, epoch=1000 * epoch, clock=clock)

    def _submit(self, request: PlannedRequest) -> None:
        """Clients go to another router where theirs is gone; without any they do not ask."""
        routers = self.cluster.routers
        names = [request.router, *(name for name in routers if name != request.router)]
        router = next((routers[name] for name in names if routers[name].is_alive), None)
        if router is None:
            return
        spec = request.spec
        outcome = self._outcomes[spec.request_id] = Outcome(spec)
        outcome.expected = {
            index: expected_tokens(
                spec.prompt_token_ids, spec.params, index, spec.params.max_tokens or 0, self._scenario.windows
            )
            for index in range(spec.params.n)
        }
        router.ask(spec, TIMEOUT_S, outcome)
        if request.cancel_s is not None:
            self._history.cancelled.add(spec.request_id)
            delay_s = request.cancel_s - request.at_s
            self.cluster.coverage["clients that left"] += 1
            router.after(delay_s, lambda: router.cancel(spec.request_id))

    def _strike(self, fault: Fault) -> None:
        cluster, nodes = self.cluster, fault.nodes
        self._history.faults.append(fault)
        cluster.log.add("*", f"{fault.kind}:", ", ".join(nodes))
        match fault.kind:
            case FaultKind.CRASH:
                self._crash(nodes[0], fault.duration_s)
            case FaultKind.LEAVE:
                self._leave(nodes[0], fault.duration_s)
            case FaultKind.FREEZE:
                self._freeze(nodes[0], fault.duration_s)
            case FaultKind.RANK:
                self._lose_rank(nodes[0], fault.duration_s)
            case FaultKind.SLOW:
                self._slow_down(nodes[0], fault.duration_s)
            case FaultKind.PARTITION:
                self._cut(fault)
            case FaultKind.BREAK:
                cluster.coverage["streams broken"] += 1
                for stream in cluster.streams:
                    if (stream.dialer, stream.target) == nodes:
                        stream.break_()
            case _:
                cluster.coverage["peer channels reset"] += 1
                cluster.network.reset(*nodes)

    def _crash(self, name: str, duration_s: float) -> None:
        node = self.cluster.node(name)
        if node.is_alive:
            self.cluster.crash(name)
            self.cluster.clock.after(duration_s, lambda: self._start(name))

    def _leave(self, name: str, duration_s: float) -> None:
        """Tell a worker to end within half the time, end it then, and start it again after the rest."""
        worker = self.cluster.workers[name]
        if not worker.is_alive:
            return
        self.cluster.coverage["departures"] += 1
        worker.take(lambda: worker.handle(Leave(within_s=0.4 * duration_s)))
        self._end_later(worker, 0.6 * duration_s, 0.4 * duration_s)

    def _freeze(self, name: str, duration_s: float) -> None:
        node = self.cluster.node(name)
        if node.is_alive and not node.is_frozen:
            self.cluster.coverage["freezes"] += 1
            node.freeze()
            self.cluster.clock.after(duration_s, node.thaw)

    def _lose_rank(self, name: str, duration_s: float) -> None:
        """Let a worker compute nothing from now on, end it half way, and start it again after the rest."""
        worker = self.cluster.workers[name]
        if not worker.is_alive:
            return
        self.cluster.coverage["ranks lost"] += 1
        worker.lose_rank()
        self._end_later(worker, 0.5 * duration_s, 0.5 * duration_s)

    def _end_later(self, worker: SimWorker, delay_s: float, down_s: float) -> None:
        """End a worker after a while, unless it is gone by then, and start it again."""

        def end() -> None:
            if worker.is_alive:
                self._crash(worker.name, down_s)

        self.cluster.clock.after(delay_s, end)

    def _slow_down(self, name: str, duration_s: float) -> None:
        worker = self.cluster.workers[name]
        self.cluster.coverage["slow ranks"] += 1
        worker.slowness = _SLOW
        self.cluster.clock.after(duration_s, worker.speed_up)

    def _cut(self, fault: Fault) -> None:
        self.cluster.coverage["partitions one way" if fault.is_one_way else "partitions"] += 1
        links = [fault.nodes] if fault.is_one_way else [fault.nodes, fault.nodes[::-1]]
        for source, target in links:
            self.cluster.network.take_down(source, target)
            mend = partial(self.cluster.network.mend, source, target)
            self.cluster.clock.after(fault.duration_s, mend)

    # --- time ---

    def _run_until(self, limit_s: float, is_done: Callable[[], bool]) -> None:
        """Run until it is done, or until it should be."""
        clock = self.cluster.clock
        while clock.now < limit_s and not is_done():
            clock.run(clock.now + _LOOK_EVERY_S)
            assert clock.num_actions < _MAX_ACTIONS, f"{clock.num_actions} events and no end"

    def _are_over(self) -> bool:
        return all(outcome.is_over for outcome in self._outcomes.values())

    def _require_settled(self) -> None:
        """Check the final state: cache updates arrive some time after the last request."""
        require_clean(self.cluster)
        require_known(self.cluster, [outcome.spec for outcome in self._outcomes.values()])

    def _is_busy(self) -> bool:
        try:
            self._require_settled()
        except AssertionError:
            return True
        return False


def _last_request(router: str, at_s: float) -> PlannedRequest:
    """Return a request that must be served once all faults are over."""
    params = SamplingParams(max_tokens=4, seed=1)
    spec = RequestSpec(request_id="last", prompt_token_ids=(1, 2, 3) * 5, params=params)
    return PlannedRequest(spec=spec, at_s=at_s, router=router)
