"""A worker under virtual time: the production core; a step and a copy only take their time.

Copies follow one another at each end of a link, and a copy runs at the pace of the slower end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from baton_core.sessions.peer_messages import ToConsumer, ToProducer
from baton_core.sessions.router_messages import KVSource, ToRouter
from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_core.worker.step_plan import SequenceSlice, StepPlan, StepResult
from baton_core.worker.worker_events import (
    AbortPull,
    CacheChanged,
    ChecksumsComputed,
    CompileGrammar,
    ComputeChecksums,
    DropAdapter,
    FromConsumer,
    FromProducer,
    LoadAdapter,
    Pull,
    PullAborted,
    PullDone,
    RunControl,
    StepDone,
    WorkerEvent,
)
from baton_simulator.capacity.hardware import StridedCost
from baton_simulator.clock import Clock
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.core.worker_core import WorkerCore
from baton_worker.core.worker_outlets import carry_out

HEARTBEAT_S: Final = 0.5
"""Between two reports to the router; deadlines of leases and transfers are looked at as often."""
GENERATED: Final = 2**31 - 1
"""The one token that is ever generated; prompts do not contain it."""


@dataclass(slots=True, kw_only=True)
class Link:
    """The link of one worker: its speed, and the time until which each direction is taken."""

    bytes_per_s: float
    sends_until_s: float = 0.0
    receives_until_s: float = 0.0

    def receive(self, now: float, source: Link, num_bytes: int) -> float:
        """Copy from another worker; returns when it ends."""
        start_s = max(now, source.sends_until_s, self.receives_until_s)
        end_s = start_s + num_bytes / min(self.bytes_per_s, source.bytes_per_s)
        source.sends_until_s = self.receives_until_s = end_s
        return end_s


class Wires(Protocol):
    """The network that a worker is connected to."""

    clock: Clock

    def to_router(self, worker_id: str, message: ToRouter) -> None: ...

    def report(self, worker_id: str, load: WorkerLoad) -> None: ...

    def to_worker(self, worker_id: str, event: WorkerEvent) -> None: ...

    def link_of(self, worker_id: str) -> Link | None:
        """Return the link of a worker, or None once the worker is gone."""
        ...

    def num_tokens(self, piece: SequenceSlice) -> int:
        """Return how many tokens the one that a slice samples stands for, at least 1."""
        ...

    def computed(self, piece: SequenceSlice, idle_s: float) -> None:
        """Take note that a slice was idle for the last `idle_s` seconds of a step that has ended."""
        ...


class SimulatedWorker:
    """Computes nothing: a token is a token, and blocks have no content."""

    def __init__(
        self,
        wires: Wires,
        info: WorkerInfo,
        config: WorkerConfig,
        cost: StridedCost,
        link: Link,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.info = info
        self.core = WorkerCore(config)
        self.link = link
        self.is_alive = True
        self.busy_s = 0.0
        """In steps that are over."""
        self._wires = wires
        self._cost = cost
        self._heartbeat_s = heartbeat_s
        self._block_bytes = config.kv_spec.block_bytes
        self._pulls: set[int] = set()
        self._reported: WorkerLoad | None = None

    def on_event(self, event: WorkerEvent) -> None:
        if self.is_alive:
            carry_out(self.core.on_event(self._wires.clock.now, event), self)
            self._step()

    def tick(self) -> None:
        """Act on what is due, and tell the router how things stand, if they changed."""
        if not self.is_alive:
            return
        clock = self._wires.clock
        due_s = self.core.next_deadline()
        if due_s is not None and due_s <= clock.now:
            carry_out(self.core.on_deadline(clock.now), self)
            self._step()
        load = self.core.load(clock.now)
        if load != self._reported:
            self._reported = load
            self._wires.report(self.info.worker_id, load)
        clock.after(self._heartbeat_s, self.tick)

    def _step(self) -> None:
        plan = self.core.schedule(self._wires.clock.now)
        if plan is not None:
            num_tokens = [self._wires.num_tokens(piece) for piece in plan.slices]
            ends_s = self._cost.ends_s(plan.slices, num_tokens)
            self._wires.clock.after(max(ends_s), partial(self._end_step, plan, ends_s))

    def _end_step(self, plan: StepPlan, ends_s: Sequence[float]) -> None:
        if not self.is_alive:
            return
        seconds = max(ends_s)
        for piece, end_s in zip(plan.slices, ends_s, strict=True):
            self._wires.computed(piece, seconds - end_s)
        self.busy_s += seconds
        sampled = tuple((GENERATED,) * len(piece.samples) for piece in plan.slices)
        self.on_event(StepDone(result=StepResult(step_id=plan.step_id, sampled=sampled)))

    # --- effects ---

    def send_to_router(self, router_id: str, message: ToRouter) -> None:
        self._wires.to_router(self.info.worker_id, message)

    def send_to_consumer(self, peer_id: bytes, message: ToConsumer) -> None:
        self._wires.to_worker(peer_id.decode(), FromProducer(message=message))

    def send_to_producer(self, source: KVSource, message: ToProducer) -> None:
        event = FromConsumer(peer_id=self.info.worker_id.encode(), message=message)
        self._wires.to_worker(source.worker_id, event)

    def transfer(self, effect: ComputeChecksums | Pull | AbortPull) -> None:
        clock = self._wires.clock
        match effect:
            case ComputeChecksums():
                computed = ChecksumsComputed(request=effect, checksums=(0,) * len(effect.indices))
                clock.after(0.0, partial(self.on_event, computed))
            case Pull():
                self._pull(effect)
            case AbortPull(pull_id=pull_id):
                self._pulls.discard(pull_id)
                clock.after(0.0, partial(self.on_event, PullAborted(pull_id=pull_id, is_fenced=True)))

    def _refuse(self, effect: CompileGrammar | LoadAdapter | DropAdapter | RunControl | CacheChanged) -> None:
        raise AssertionError(f"nobody asked this worker for {effect}")

    compile_grammar = load_adapter = drop_adapter = run_control = cache_changed = _refuse

    def _pull(self, pull: Pull) -> None:
        source, now = self._wires.link_of(pull.source.worker_id), self._wires.clock.now
        error = "" if source else "the source is gone"
        num_bytes = len(pull.blocks) * self._block_bytes
        end_s = self.link.receive(now, source, num_bytes) if source else now + HEARTBEAT_S
        self._pulls.add(pull.pull_id)
        done = PullDone(pull_id=pull.pull_id, error=error)
        self._wires.clock.after(end_s - now, partial(self._end_pull, done))

    def _end_pull(self, done: PullDone) -> None:
        if done.pull_id in self._pulls:
            self._pulls.remove(done.pull_id)
            self.on_event(done)
