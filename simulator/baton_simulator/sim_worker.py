"""A simulated worker: the production core, its sessions and peer channel, and an engine in virtual time."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Final

from baton_core.blocks.block_pool import BlockState
from baton_core.kv_layout.paging import NO_BLOCK
from baton_core.sessions.peer_messages import PeerMessage, ToConsumer, ToProducer
from baton_core.sessions.router_messages import KVSource, ToRouter
from baton_core.sessions.worker_info import WorkerInfo
from baton_core.worker.step_plan import StepPlan
from baton_core.worker.worker_events import (
    AbortPull,
    AdapterLoaded,
    CacheChanged,
    ChecksumsComputed,
    CompileGrammar,
    ComputeChecksums,
    DropAdapter,
    FromConsumer,
    FromProducer,
    GrammarCompiled,
    LoadAdapter,
    Pull,
    RunControl,
    StepDone,
    WorkerEvent,
)
from baton_simulator.clock import NodeClock
from baton_simulator.conditions import StepCost
from baton_simulator.copies import Copies
from baton_simulator.interfaces import Engine, Surroundings
from baton_simulator.lease_watch import LeaseWatch
from baton_simulator.node import Node
from baton_simulator.router_link import RouterLink
from baton_simulator.sim_drafter import SimDraftModel
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.core.worker_core import WorkerCore
from baton_worker.core.worker_outlets import carry_out

BAD_GRAMMAR: Final = "structured_outputs.regex is '('; allowed: an expression"
_MAX_CHECKSUM_S: Final = 0.005
_MAX_HOP_S: Final = 0.005
"""Longest time of a result's way to the core, while the engine computes the next step."""


class SimWorker(Node):
    """Dials every router of the cluster."""

    def __init__(
        self,
        cluster: Surroundings,
        info: WorkerInfo,
        config: WorkerConfig,
        engine: Engine,
        clock: NodeClock,
        cost: StepCost,
    ) -> None:
        super().__init__(cluster, info.worker_id, clock)
        self.info = info
        self.core = WorkerCore(config)
        self.engine = engine
        self._cost = cost
        self.rng = Random(f"{cluster.seed}/{info.worker_id}/{info.epoch}")
        self.links = [RouterLink(self, name) for name in cluster.routers]
        self._plans: deque[StepPlan] = deque()
        """Plans that are not computed yet, in order."""
        self._computed: dict[int, StepDone] = {}
        """Results that come back behind a plan that is not computed yet, by step."""
        self._begun: deque[StepPlan] = deque()
        """Plans of the steps that have begun and are not computed yet, in order."""
        self._rests_s: dict[int, float] = {}
        """By step that only waits for others before it: the time from its computation to its end."""
        self._results: deque[StepDone] = deque()
        """Results that the core does not have yet."""
        self._is_rank_lost = False
        self.slowness = 1.0
        """A step takes so many times as long: a rank of the group is slow."""
        self.draft_model: SimDraftModel | None = None
        self._copies = Copies(self)
        self._watch = LeaseWatch(self)

    def deadlines(self) -> list[float | None]:
        return [self.core.next_deadline(), *(link.next_deadline() for link in self.links)]

    def on_wake(self) -> None:
        for link in self.links:
            link.on_deadline()
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self.now:
            carry_out(self.core.on_deadline(self.now), self)
            self.core.check_invariants()
        self.settle()

    def crash(self) -> None:
        self.is_alive = False
        for link in self.links:
            link.crash()

    def lose_rank(self) -> None:
        """Compute nothing any more: a rank of the group is lost, which its leader has not noticed yet."""
        self._is_rank_lost = True

    def speed_up(self) -> None:
        """Compute as fast as usual again."""
        self.slowness = 1.0

    def on_event(self, event: WorkerEvent) -> None:
        """Feed the core and do what it says; `settle` has to follow."""
        num_open = (self.core.leases.num_open, self.core.leases.num_early)
        effects = self.core.on_event(self.now, event)
        if isinstance(event, FromConsumer):
            self._watch.on_asked(event.message, effects, num_open)
        carry_out(effects, self)
        self.core.check_invariants()

    def handle(self, event: WorkerEvent) -> None:
        """Take what happens outside of the sessions."""
        self.on_event(event)
        self.settle()

    def settle(self) -> None:
        """Keep the engine busy, write what is to be written, keep the timer."""
        while (plan := self.core.schedule(self.now)) is not None:
            others = {piece.seq_id for other in self._plans for piece in other.slices}
            if plan.follows is None and any(piece.seq_id in others for piece in plan.slices):
                self.cluster.coverage["chunks behind one in flight"] += 1
            self._plans.append(plan)
            if plan.follows is None or len(self._plans) == 1:
                self._begin_step(plan)
            if any(piece.num_drafts for piece in plan.slices):
                self.cluster.coverage["steps with drafts"] += 1
            if len(self._plans) > 1:
                self.cluster.coverage["steps planned ahead" if plan.follows else "steps beside others"] += 1
            self.core.check_invariants()
        for link in self.links:
            link.settle()
        self.arm()

    # --- steps ---

    def _begin_step(self, plan: StepPlan) -> None:
        """Compute somewhere within the step: its blocks stay what they were when it was planned."""
        step_s = self._cost.step_s(plan) * self.rng.uniform(0.5, 1.5) * self.slowness
        computed_s = step_s * self.rng.random()
        self._begun.append(plan)
        self.after(computed_s, lambda: self._compute_in_order(plan, step_s - computed_s))

    def _compute_in_order(self, plan: StepPlan, rest_s: float) -> None:
        """Compute a step once those planned before it are computed, as each stage of a pipeline does."""
        self._rests_s[plan.step_id] = rest_s
        while self._begun and self._begun[0].step_id in self._rests_s and not self._is_rank_lost:
            plan = self._begun.popleft()
            self._compute(plan, self._rests_s.pop(plan.step_id))

    def _compute(self, plan: StepPlan, rest_s: float) -> None:
        pool = self.core.pool
        for piece in plan.slices:
            for table in piece.block_tables:
                for block_id in table:
                    assert block_id == NO_BLOCK or pool.state(block_id) is BlockState.ACTIVE, (
                        f"{self.name}: a step of {piece.seq_id} uses block {block_id}, "
                        f"which is {pool.state(block_id)}"
                    )
        result = self.engine.execute(plan)
        if self.draft_model is not None:
            result = self.draft_model.draft(plan, result)
            if any(result.drafts.values()):
                self.cluster.coverage["drafts by a model"] += 1
        done = StepDone(result=result)
        self.after(rest_s, lambda: self._end_step(done))

    def _end_step(self, done: StepDone) -> None:
        """Tell the core in the order of the plans, or let it be told while the next step computes."""
        self._computed[done.result.step_id] = done
        while self._plans and self._plans[0].step_id in self._computed:
            self._results.append(self._computed.pop(self._plans.popleft().step_id))
            if not self._plans:
                self._tell_result()
                return
            if self._plans[0].follows is not None:
                self._begin_step(self._plans[0])
            self.after(self.rng.uniform(0, _MAX_HOP_S), self._tell_result)

    def _tell_result(self) -> None:
        self.handle(self._results.popleft())

    # --- effects ---

    def send_to_router(self, router_id: str, message: ToRouter) -> None:
        for link in self.links:
            link.send(router_id, message)

    def send_to_consumer(self, peer_id: bytes, message: ToConsumer) -> None:
        self._watch.on_answer(message)
        self._post(peer_id.decode(), message, FromProducer(message=message))

    def send_to_producer(self, source: KVSource, message: ToProducer) -> None:
        self._post(source.worker_id, message, FromConsumer(peer_id=self.name.encode(), message=message))

    def transfer(self, effect: ComputeChecksums | Pull | AbortPull) -> None:
        match effect:
            case ComputeChecksums(block_ids=block_ids):
                computed = ChecksumsComputed(
                    request=effect, checksums=tuple(map(self.engine.checksum, block_ids))
                )
                self.after(self.rng.uniform(0, _MAX_CHECKSUM_S), lambda: self.handle(computed))
            case Pull():
                self.cluster.log.add(self.name, "begins pull", effect)
                self._copies.begin(effect)
            case AbortPull(pull_id=pull_id):
                self.cluster.log.add(self.name, "aborts pull", pull_id)
                self._copies.abort(effect)

    def compile_grammar(self, effect: CompileGrammar) -> None:
        faults = self.cluster.conditions.faults
        error = BAD_GRAMMAR if self.rng.random() < faults.grammar_failure else ""
        compiled = GrammarCompiled(compilation_id=effect.compilation_id, error=error)
        self.after(self.rng.uniform(0, faults.max_prepare_s), lambda: self.handle(compiled))

    def load_adapter(self, effect: LoadAdapter) -> None:
        loaded = AdapterLoaded(digest=effect.adapter.digest)
        self.after(
            self.rng.uniform(0, self.cluster.conditions.faults.max_prepare_s), lambda: self.handle(loaded)
        )

    def drop_adapter(self, effect: DropAdapter) -> None:
        """An adapter here is nothing but its digest."""

    def run_control(self, effect: RunControl) -> None:
        raise AssertionError(f"nobody asked this worker for {effect}")

    def cache_changed(self, effect: CacheChanged) -> None:
        """Nobody follows the cache elsewhere than over a session."""

    def _post(self, to: str, message: PeerMessage, event: WorkerEvent) -> None:
        """Whoever has the name when the message arrives gets it."""
        cluster = self.cluster
        cluster.log.add(self.name, f"writes to {to}", message)

        def deliver() -> None:
            receiver = cluster.workers[to]
            receiver.take(lambda: receiver.handle(event))

        cluster.network.send(self.name, to, deliver)
