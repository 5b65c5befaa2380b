"""Worker cores whose router, engine, connector and peers are played by a test."""

from __future__ import annotations

import json
from typing import Any

from baton_core.requests.phases import PhaseReport
from baton_core.sessions.control_messages import Control, ControlAction, ControlResult
from baton_core.sessions.peer_messages import ToConsumer, ToProducer
from baton_core.sessions.router_messages import (
    Cancel,
    FirstTokenOf,
    Generate,
    Prefill,
    RequestSpec,
    Reserve,
    Start,
    ToWorker,
)
from baton_core.worker.step_plan import StepPlan
from baton_core.worker.worker_events import (
    ChecksumsComputed,
    ComputeChecksums,
    FromConsumer,
    FromProducer,
    FromRouter,
    Pull,
    PullDone,
    SendToConsumer,
    SendToProducer,
    SendToRouter,
    StepDone,
    WorkerEvent,
)
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.core.worker_core import WorkerCore
from tests.builders import make_source, make_worker_config, step_result

ROUTER = "router"


class Worker:
    """One core. What it tells the router is kept in `told`, what it did for requests that are over in
    `reports`; every other effect is returned."""

    def __init__(self, config: WorkerConfig) -> None:
        self.core = WorkerCore(config)
        self.told: list[Any] = []
        self.reports: list[PhaseReport] = []

    def feed(self, event: WorkerEvent, *, now: float = 0.0) -> list[Any]:
        return self._file(self.core.on_event(now, event))

    def wait(self, now: float) -> list[Any]:
        """Let the time come to `now`, with every deadline on the way."""
        effects: list[Any] = []
        while (deadline := self.core.next_deadline()) is not None and deadline <= now:
            effects += self._file(self.core.on_deadline(deadline))
        return effects

    def command(self, message: ToWorker, *, now: float = 0.0) -> list[Any]:
        return self.feed(FromRouter(router_id=ROUTER, message=message), now=now)

    def generate(self, spec: RequestSpec, *, now: float = 0.0) -> list[Any]:
        return self.command(Generate(spec=spec), now=now)

    def prefill(self, spec: RequestSpec, *, now: float = 0.0) -> list[Any]:
        return self.command(Prefill(spec=spec), now=now)

    def reserve(self, spec: RequestSpec, *, epoch: int = 1, now: float = 0.0) -> list[Any]:
        return self.command(Reserve(spec=spec, source=make_source("p", epoch=epoch)), now=now)

    def start(self, request_id: str, *token_ids: int, now: float = 0.0) -> list[Any]:
        first = tuple(FirstTokenOf(index=i, token_id=token_id) for i, token_id in enumerate(token_ids))
        return self.command(Start(request_id=request_id, first_tokens=first), now=now)

    def cancel(self, request_id: str, *indices: int, now: float = 0.0) -> list[Any]:
        return self.command(Cancel(request_id=request_id, indices=indices), now=now)

    def ask(
        self,
        action: ControlAction,
        *,
        control_id: int = 1,
        timeout_s: float = 10.0,
        now: float = 0.0,
        **argument: Any,
    ) -> list[Any]:
        """Give an operator's control."""
        text = json.dumps(argument)
        control = Control(control_id=control_id, action=action, argument_json=text, timeout_s=timeout_s)
        return self.command(control, now=now)

    def answer(self) -> ControlResult:
        """Return what it last said to a control."""
        result = self.heard(ControlResult)[-1]
        assert isinstance(result, ControlResult)
        return result

    def plan(self, now: float = 0.0) -> StepPlan:
        plan = self.core.schedule(now)
        assert plan is not None, "there is nothing to compute"
        return plan

    def step(self, *, token_id: int = 500, now: float = 0.0) -> list[Any]:
        """Plan, execute and take back one step."""
        return self.feed(StepDone(result=step_result(self.plan(now), token_id)), now=now)

    def run(self) -> list[Any]:
        """Compute until no request is left."""
        effects: list[Any] = []
        while self.core.num_requests:
            effects += self.step()
        return effects

    def heard(self, kind: type) -> list[Any]:
        """Return the router's messages of one kind."""
        return [message for message in self.told if isinstance(message, kind)]

    def take_told(self) -> list[Any]:
        told, self.told = self.told, []
        return told

    def _file(self, effects: list[Any]) -> list[Any]:
        self.core.check_invariants()
        told = [effect.message for effect in effects if isinstance(effect, SendToRouter)]
        self.told += [message for message in told if not isinstance(message, PhaseReport)]
        self.reports += [message for message in told if isinstance(message, PhaseReport)]
        return [effect for effect in effects if not isinstance(effect, SendToRouter)]


def make_worker(**changes: Any) -> Worker:
    return Worker(make_worker_config(**changes))


class Pair:
    """A prefill worker and a decode worker with a connector between them."""

    def __init__(self, *, by_checksum: bool = False, num_blocks: int = 16, **changes: Any) -> None:
        options = {"is_verified_by_checksum": by_checksum, "num_blocks": num_blocks, **changes}
        self.p = Worker(make_worker_config("p", **options))
        self.d = Worker(make_worker_config("d", **options))
        self.pulls: list[Pull] = []
        self.num_pulled_blocks = 0
        self.is_cut = False
        """True once no message passes between the two any more."""
        self.broken_blocks: set[int] = set()
        """Producer's blocks whose content arrives wrong."""

    def reserve(self, spec: RequestSpec, *, epoch: int = 1, now: float = 0.0) -> None:
        self.carry(self.d.reserve(spec, epoch=epoch, now=now), now=now)

    def prefill(self, spec: RequestSpec, *, now: float = 0.0) -> None:
        """Compute a prompt at the prefill worker, its blocks announced on the way."""
        self.carry(self.p.prefill(spec, now=now), now=now)
        while self.p.core.num_requests:
            self.carry(self.p.step(now=now), now=now)

    def wait(self, now: float) -> None:
        self.carry(self.p.wait(now), now=now)
        self.carry(self.d.wait(now), now=now)

    def carry(self, effects: list[Any], *, now: float = 0.0) -> None:
        """Deliver effects of either worker, and those that follow from them; pulls wait."""
        queue = list(effects)
        while queue:
            queue += self._deliver(queue.pop(0), now)

    def finish_pulls(self, *, now: float = 0.0) -> None:
        """Complete the pulls in flight; blocks in `broken_blocks` fail their checksums."""
        while self.pulls:
            pull = self.pulls.pop(0)
            self.num_pulled_blocks += len(pull.blocks)
            failed = tuple(
                block.local_block_id for block in pull.blocks if block.remote_block_id in self.broken_blocks
            )
            event = PullDone(pull_id=pull.pull_id, failed_block_ids=failed)
            self.carry(self.d.feed(event, now=now), now=now)

    def begin(self, spec: RequestSpec, *, now: float = 0.0) -> None:
        """Prefill for a reservation; its pulls are in flight."""
        self.reserve(spec, now=now)
        self.prefill(spec, now=now)

    def hand_over(self, spec: RequestSpec, *, now: float = 0.0) -> None:
        """Prefill, pull and start with token 500; the sequence is ready to decode."""
        self.begin(spec, now=now)
        self.finish_pulls(now=now)
        self.carry(self.d.start(spec.request_id, *[500] * spec.params.n, now=now), now=now)

    def _deliver(self, effect: Any, now: float) -> list[Any]:
        match effect:
            case Pull():
                self.pulls.append(effect)
                return []
            case ComputeChecksums():
                return self.p.feed(ChecksumsComputed(request=effect, checksums=effect.block_ids), now=now)
            case SendToProducer(message=message) if not self.is_cut:
                return self.to_producer(message, now=now)
            case SendToConsumer(message=message) if not self.is_cut:
                return self.to_consumer(message, now=now)
        return []

    def to_producer(self, message: ToProducer, *, now: float = 0.0) -> list[Any]:
        return self.p.feed(FromConsumer(peer_id=b"d", message=message), now=now)

    def to_consumer(self, message: ToConsumer, *, now: float = 0.0) -> list[Any]:
        return self.d.feed(FromProducer(message=message), now=now)

    def assert_nothing_is_held(self) -> None:
        for worker in (self.p, self.d):
            assert worker.core.pool.num_used == 0
            assert worker.core.leases.num_open == worker.core.kv_pulls.num_transfers == 0
            assert worker.core.num_requests == 0
