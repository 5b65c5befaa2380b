"""A cluster in one thread under a virtual clock: the production cores over a network that misbehaves.

A seed decides everything. After every event the invariants of the node that took it are checked.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Protocol

from baton_core.block_pool import BlockState
from baton_core.finish import FinishReason
from baton_core.peer_messages import PeerMessage, decode_peer, encode_peer
from baton_core.router_core import RouterConfig, RouterCore
from baton_core.router_events import (
    ClientGone,
    EmitTokens,
    FailRequest,
    FinishRequest,
    RouterEffect,
    RouterEvent,
    SendToWorker,
    Submit,
    WorkerJoined,
    WorkerLeft,
    WorkerReported,
    WorkerSaid,
)
from baton_core.router_messages import RequestSpec, Transferred
from baton_core.session import SessionMachine, SessionTimings
from baton_core.step_plan import NO_BLOCK, StepPlan, StepResult
from baton_core.worker_config import WorkerConfig
from baton_core.worker_core import WorkerCore
from baton_core.worker_events import (
    AbortPull,
    BlockPull,
    HolderSaid,
    Pull,
    PullAborted,
    PullDone,
    PullerSaid,
    RouterJoined,
    RouterLost,
    RouterSaid,
    Seal,
    Sealed,
    SendToHolder,
    SendToPuller,
    SendToRouter,
    StepDone,
    WorkerEffect,
    WorkerEvent,
)
from baton_core.worker_info import WorkerInfo

PATIENT = SessionTimings(dead_after_s=5.0)
"""Losing three heartbeats in a row is no rarity on this network, and not what these runs are about."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Probabilities per message, and delays in seconds."""

    loss: float = 0.0
    repeat: float = 0.0
    session_loss: float = 0.0
    max_delay_s: float = 0.01
    pull_failure: float = 0.0
    is_abort_safe: bool = True


class Clock:
    """Virtual time: events in the order of their time, then of their making."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), action))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until_s


class Network:
    """Datagrams are lost, repeated, delayed and so reordered; a stream keeps its order but loses a little."""

    def __init__(self, clock: Clock, rng: Random, faults: Faults) -> None:
        self._clock, self._rng, self._faults = clock, rng, faults
        self._stream_ends: dict[str, float] = {}

    def stream(self, link: str, deliver: Callable[[], None]) -> None:
        if self._rng.random() < self._faults.session_loss:
            return
        arrival = self._clock.now + self._rng.uniform(0.0001, self._faults.max_delay_s)
        self._stream_ends[link] = max(arrival, self._stream_ends.get(link, 0.0))
        self._clock.after(self._stream_ends[link] - self._clock.now, deliver)

    def send(self, deliver: Callable[[], None]) -> None:
        copies = 1 + (self._rng.random() < self._faults.repeat)
        for _ in range(copies):
            if self._rng.random() >= self._faults.loss:
                self._clock.after(self._rng.uniform(0.0001, self._faults.max_delay_s), deliver)


class Node:
    """What router and workers share: being alive, and waking up for deadlines."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.is_alive = True
        self._wake_at: float | None = None

    def deadlines(self) -> list[float | None]:
        raise NotImplementedError

    def on_wake(self) -> None:
        raise NotImplementedError

    def arm(self) -> None:
        due = min((deadline for deadline in self.deadlines() if deadline is not None), default=None)
        if due is not None and (self._wake_at is None or due < self._wake_at):
            self._wake_at = due
            self.cluster.clock.after(max(0.0, due - self.cluster.clock.now), lambda: self._wake(due))

    def _wake(self, due: float) -> None:
        if self.is_alive and self._wake_at == due:
            self._wake_at = None
            self.on_wake()
            self.arm()


class Engine(Protocol):
    """What a worker computes and moves with: hashes, or a real model and a real connector."""

    def execute(self, plan: StepPlan) -> StepResult: ...

    def checksum(self, block_id: int) -> int: ...

    def pull(self, blocks: tuple[BlockPull, ...], source: Engine) -> tuple[int, ...]:
        """Copy blocks out of the source's pool; returns the local blocks that did not arrive right."""
        ...


class SimWorker(Node):
    def __init__(self, cluster: Cluster, info: WorkerInfo, config: WorkerConfig, engine: Engine) -> None:
        super().__init__(cluster)
        self.info = info
        self.core = WorkerCore(config)
        self.engine = engine
        self.session: SessionMachine = SessionMachine("router", PATIENT)
        self.pulls: dict[int, Pull] = {}
        self._is_session_over = False

    def deadlines(self) -> list[float | None]:
        return [self.core.next_deadline(), self.session.next_deadline()]

    def on_wake(self) -> None:
        now = self.cluster.clock.now
        self.session.on_deadline(now)
        self._execute(self.core.on_deadline(now))
        self._after()

    def on_event(self, event: WorkerEvent) -> None:
        if self.is_alive:
            self._execute(self.core.on_event(self.cluster.clock.now, event))
            self._after()

    def on_frame(self, frame: object) -> None:
        if not self.is_alive:
            return
        for message in self.session.on_frame(self.cluster.clock.now, frame):
            self._execute(
                self.core.on_event(self.cluster.clock.now, RouterSaid(router_id="r", message=message))
            )
        self._after()

    def _after(self) -> None:
        now = self.cluster.clock.now
        if self.session.is_over and not self._is_session_over:
            self._is_session_over = True
            self._execute(self.core.on_event(now, RouterLost(router_id="r")))
        if (plan := self.core.schedule(now)) is not None:
            self.cluster.clock.after(self.cluster.rng.uniform(0.0, 0.005), lambda: self._step(plan))
        for frame in self.session.take_frames(now, 64):
            self.cluster.network.stream(
                f"{self.info.worker_id} to router", lambda f=frame: self.cluster.router.on_frame(self, f)
            )
        self.core.check_invariants()
        self.session.check_invariants()
        self.arm()

    def _step(self, plan: StepPlan) -> None:
        """Compute somewhere within the step: its blocks stay what they were when it was planned."""
        tables = [table for piece in plan.slices for table in piece.block_tables]
        blocks = {block_id for table in tables for block_id in table} - {NO_BLOCK}
        states = {self.core.pool.state(block_id) for block_id in blocks}
        assert states == {BlockState.ACTIVE}, "a step computes on blocks that are no sequence's"
        result = self.engine.execute(plan)
        self.cluster.clock.after(
            self.cluster.rng.uniform(0.001, 0.005), lambda: self.on_event(StepDone(result=result))
        )

    def _execute(self, effects: list[WorkerEffect]) -> None:
        cluster, me = self.cluster, self.info.worker_id
        for effect in effects:
            match effect:
                case SendToRouter(message=message):
                    self.session.send(message)
                case SendToPuller(peer_id=peer_id, message=message):
                    self._post(peer_id.decode(), message, lambda m: HolderSaid(message=m))
                case SendToHolder(source=source, message=message):
                    self._post(
                        source.worker_id, message, lambda m: PullerSaid(peer_id=me.encode(), message=m)
                    )
                case Seal(request_id=request_id, indices=indices, block_ids=block_ids):
                    sealed = Sealed(
                        request_id=request_id,
                        indices=indices,
                        block_ids=block_ids,
                        checksums=tuple(self.engine.checksum(block_id) for block_id in block_ids),
                    )
                    cluster.clock.after(cluster.rng.uniform(0, 0.005), lambda s=sealed: self.on_event(s))
                case Pull():
                    self.pulls[effect.pull_id] = effect
                    delay_s = cluster.rng.uniform(0.001, cluster.pull_delay_s)
                    cluster.clock.after(delay_s, lambda p=effect: self._pull(p))
                case AbortPull(pull_id=pull_id):
                    is_safe = cluster.faults.is_abort_safe
                    if is_safe:
                        self.pulls.pop(pull_id, None)
                    answer = PullAborted(pull_id=pull_id, is_fenced=is_safe)
                    cluster.clock.after(0.001, lambda a=answer: self.on_event(a))

    def _post(self, to: str, message: PeerMessage, event: Callable[[PeerMessage], WorkerEvent]) -> None:
        wire = encode_peer(message)
        receiver = self.cluster.workers[to]
        self.cluster.network.send(
            lambda: receiver.on_event(event(decode_peer(wire))) if receiver.is_alive else None
        )

    def _pull(self, pull: Pull) -> None:
        if not self.is_alive or self.pulls.pop(pull.pull_id, None) is None:
            return
        source = self.cluster.workers[pull.source.worker_id]
        is_gone = not source.is_alive or source.info.epoch != pull.source.epoch
        if is_gone or self.cluster.rng.random() < self.cluster.faults.pull_failure:
            self.on_event(PullDone(pull_id=pull.pull_id, error="the source is gone"))
            return
        failed = self.engine.pull(pull.blocks, source.engine)
        self.on_event(PullDone(pull_id=pull.pull_id, failed_block_ids=failed))


@dataclass
class Outcome:
    """What a client saw of its request."""

    spec: RequestSpec
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    first_token_s: float | None = None
    """When its first token was emitted, in virtual time."""
    ends: list[FinishRequest | FailRequest] = field(default_factory=list)


class SimRouter(Node):
    def __init__(self, cluster: Cluster, config: RouterConfig) -> None:
        super().__init__(cluster)
        self.core = RouterCore(config)
        self.sessions: dict[str, tuple[SimWorker, SessionMachine]] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.transferred_s: dict[str, float] = {}
        """When a decode worker said that the blocks of an attempt are all there, in virtual time."""

    def deadlines(self) -> list[float | None]:
        return [self.core.next_deadline(), *(s.next_deadline() for _, s in self.sessions.values())]

    def on_wake(self) -> None:
        now = self.cluster.clock.now
        for _, session in list(self.sessions.values()):
            session.on_deadline(now)
        self._execute(self.core.on_deadline(now))
        self._after()

    def on_event(self, event: RouterEvent) -> None:
        self._execute(self.core.on_event(self.cluster.clock.now, event))
        self._after()

    def submit(self, spec: RequestSpec, timeout_s: float) -> None:
        self.outcomes[spec.request_id] = Outcome(spec)
        self.on_event(Submit(spec=spec, timeout_s=timeout_s))

    def join(self, worker: SimWorker) -> None:
        now = self.cluster.clock.now
        if self.sessions.pop(worker.info.worker_id, None) is not None:
            self.on_event(WorkerLeft(worker_id=worker.info.worker_id, reason="it restarted"))
        session: SessionMachine = SessionMachine(f"worker {worker.info.worker_id}", PATIENT)
        session.on_connected(now, worker.info.epoch, 0)
        worker.session.on_connected(now, 1, 0)
        self.sessions[worker.info.worker_id] = (worker, session)
        worker.on_event(RouterJoined(router_id="r"))
        self.on_event(WorkerJoined(info=worker.info))

    def on_frame(self, worker: SimWorker, frame: object) -> None:
        name, now = worker.info.worker_id, self.cluster.clock.now
        if self.sessions.get(name, (None,))[0] is not worker:
            return
        for message in self.sessions[name][1].on_frame(now, frame):
            if isinstance(message, Transferred):
                self.transferred_s[message.request_id] = now
            self._execute(self.core.on_event(now, WorkerSaid(worker_id=name, message=message)))
        load = worker.core.load(now)
        self._execute(self.core.on_event(now, WorkerReported(worker_id=name, load=load)))
        self._after()

    def _after(self) -> None:
        now = self.cluster.clock.now
        for name, (worker, session) in list(self.sessions.items()):
            if session.is_over:
                del self.sessions[name]
                self._execute(self.core.on_event(now, WorkerLeft(worker_id=name, reason=session.reason)))
                continue
            for frame in session.take_frames(now, 64):
                self.cluster.network.stream(f"router to {name}", lambda w=worker, f=frame: w.on_frame(f))
            session.check_invariants()
        self.core.check_invariants()
        self.arm()

    def _execute(self, effects: list[RouterEffect]) -> None:
        for effect in effects:
            match effect:
                case SendToWorker(worker_id=worker_id, message=message):
                    if worker_id in self.sessions:
                        self.sessions[worker_id][1].send(message)
                case EmitTokens(output=output):
                    outcome = self.outcomes[output.request_id]
                    assert not outcome.ends, "a token after the end"
                    assert output.index not in outcome.finish_reasons, "a token after its sequence's end"
                    outcome.tokens.setdefault(output.index, []).extend(output.token_ids)
                    if outcome.first_token_s is None:
                        outcome.first_token_s = self.cluster.clock.now
                    if output.finish_reason is not None:
                        outcome.finish_reasons[output.index] = output.finish_reason
                case FinishRequest(request_id=request_id) | FailRequest(request_id=request_id):
                    self.outcomes[request_id].ends.append(effect)


class Cluster:
    """Router and workers; `kill` and `start` change the members while it runs."""

    def __init__(
        self, seed: int, *, faults: Faults, router: RouterConfig, pull_delay_s: float = 0.02
    ) -> None:
        self.clock = Clock()
        self.rng = Random(seed)
        self.faults = faults
        self.pull_delay_s = pull_delay_s
        self.network = Network(self.clock, self.rng, faults)
        self.workers: dict[str, SimWorker] = {}
        self.router = SimRouter(self, router)

    def start(self, info: WorkerInfo, config: WorkerConfig, engine: Engine) -> SimWorker:
        worker = SimWorker(self, info, config, engine)
        self.workers[info.worker_id] = worker
        self.router.join(worker)
        return worker

    def kill(self, worker_id: str) -> None:
        self.workers[worker_id].is_alive = False

    def cancel(self, request_id: str) -> None:
        self.router.on_event(ClientGone(request_id=request_id))
