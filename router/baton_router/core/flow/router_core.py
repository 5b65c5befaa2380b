"""The core of a router: its workers and the flow of every accepted request."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from baton_core.errors import ErrorCode, NameTakenError
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.requests.phases import PhaseReport
from baton_core.requests.request_context import RequestContext
from baton_core.sessions.control_messages import ControlResult
from baton_core.sessions.router_messages import RequestSpec, TokenBatch, ToRouter
from baton_router.core.admission.admission import Admission, AdmissionConfig
from baton_router.core.admission.admission_outcome import Refusal
from baton_router.core.admission.assignment import Assignment
from baton_router.core.batches.line_pace import RequestLoad
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.fleet.prefix_index import NUM_SHARDS
from baton_router.core.fleet.role_balance import BalanceConfig, RoleBalance
from baton_router.core.fleet.role_pressure import Waiting
from baton_router.core.fleet.scaling import Scaling, ScalingConfig
from baton_router.core.flow.deadlines import Deadlines
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.flow_state import PREFILLING, TERMINAL, WITHOUT_WORKER, FlowState
from baton_router.core.flow.request_flow import RequestFlow
from baton_router.core.flow.request_log import RequestLog
from baton_router.core.flow.request_record import open_record
from baton_router.core.placement.eligibility import Unplaceable
from baton_router.core.router_events import (
    ClientGone,
    FailRequest,
    FromWorker,
    HoldDispatch,
    PeerLoad,
    PeerSpending,
    PrefixUpdate,
    ProcessUpdate,
    RouterEffect,
    RouterEvent,
    StopMatched,
    Submit,
    WorkerJoined,
    WorkerLeft,
    WorkerReported,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    limits: FlowLimits = field(default_factory=FlowLimits)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    max_num_requests: int = 4096
    """Maximum number of open requests."""
    adaptive_roles: BalanceConfig | None = None
    """Settings of the role balance; None leaves roles to operators."""
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    """Limits of how many workers are recommended."""
    index_shards: int = NUM_SHARDS
    """Shards of the prefix index; few suffice for few blocks."""


class RouterCore:
    """Takes events and returns effects. Owned by the router's loop."""

    def __init__(self, config: RouterConfig) -> None:
        self.fleet = Fleet(config.index_shards)
        self.log = RequestLog()
        self.num_wasted_tokens = 0
        """Tokens that arrived after their sequence was over."""
        self.num_migrations = 0
        """Migrations of requests that have ended."""
        self.admission = Admission(config.admission, self.fleet)
        self.roles = RoleBalance(config.adaptive_roles)
        self.scaling = Scaling(config.scaling)
        """How many workers each role should have; whoever runs the core samples it."""
        self._config = config
        self._flows: dict[str, RequestFlow] = {}
        self._request_of_attempt: dict[str, str] = {}
        self._attempt_of: dict[str, str] = {}
        self._deadlines = Deadlines()
        self._prefilling: set[str] = set()
        self._of_lines: set[str] = set()
        """Requests of lines of batches."""
        self._without_worker: dict[str, None] = {}
        self.why_held = ""
        """The reason why no request that waits is dispatched; empty while they are. Begun ones go on."""
        self._next_dispatch_s = -math.inf
        """Earliest next dispatch from the queue, unless an event certainly makes room."""
        self._may_have_room = False
        """True if workers may have room that the queue was not dispatched to yet."""

    @property
    def is_held(self) -> bool:
        """True while no request that waits is dispatched."""
        return bool(self.why_held)

    @property
    def num_requests(self) -> int:
        return len(self._flows)

    @property
    def num_begun(self) -> int:
        """Requests that workers have, or have had: they do not wait for their first one."""
        return len(self._flows) - self.admission.num_waiting

    @property
    def load(self) -> RequestLoad:
        """The open requests, as lines of batches see them."""
        return RequestLoad(
            num_others=len(self._flows) - len(self._of_lines),
            num_waiting=self.admission.num_waiting,
            num_prefilling=len(self._prefilling),
            num_workers=self.fleet.num_prefilling_workers if self.fleet.is_ready else 0,
        )

    def on_event(self, now: float, event: RouterEvent) -> list[RouterEffect]:
        """Take one event; returns the effects for the shell, in order.

        Raises:
            IncompatibleWorkerError: the worker of a `WorkerJoined` cannot be paired with the others.
        """
        self.fleet.sweep()
        effects = self._on_event(now, event)
        if self._may_have_room:
            effects += self._place_waiting(now)
        return effects + self._shed(now)

    def _on_event(self, now: float, event: RouterEvent) -> list[RouterEffect]:
        match event:
            case Submit():
                return self._submit(now, event)
            case ClientGone(request_id=request_id, code=code, message=message):
                if (flow := self._flows.get(request_id)) is None:
                    return []
                return self._track(now, flow, flow.fail(now, code, message))
            case StopMatched(request_id=request_id, index=index):
                flow = self._flows.get(request_id)
                return self._track(now, flow, flow.on_stop(now, index)) if flow else []
            case WorkerJoined(info=info):
                self.fleet.join(info)
                return self._place_waiting(now, is_forced=True)
            case WorkerLeft(worker_id=worker_id, reason=reason):
                waiting = self.fleet.leave(worker_id)
                return self._on_worker_lost(now, worker_id, reason, waiting)
            case WorkerReported(worker_id=worker_id, load=load):
                self.fleet.report(now, worker_id, load)
                self._may_have_room = True
                return []
            case FromWorker(worker_id=worker_id, message=message):
                return self._on_worker_message(now, worker_id, message)
            case PrefixUpdate(worker_id=worker_id, epoch=epoch, delta=delta):
                self.fleet.apply_delta(worker_id, delta, epoch)
                return []
            case PeerLoad(router_id=router_id, reservations=reservations):
                self.fleet.set_peer_load(router_id, reservations)
                return []
            case PeerSpending(spending=spending):
                self.admission.spend_elsewhere(now, spending)
                return []
            case ProcessUpdate(process=process):
                self.fleet.processes.update(now, process)
                return []
            case HoldDispatch(why=why):
                self.why_held = why
                return self._place_waiting(now, is_forced=True)
        assert_never(event)

    def next_deadline(self) -> float | None:
        """Time at which `on_deadline` is due."""
        dispatch_s = self._next_dispatch_s if self._may_have_room else None
        deadlines = (self._deadlines.next(), self.roles.next_deadline(), dispatch_s)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_deadline(self, now: float) -> list[RouterEffect]:
        """Fail requests whose time is over, dispatch from the queue, and evaluate the roles."""
        self.fleet.sweep()
        due = [self._flows[request_id] for request_id in self._deadlines.due(now)]
        ends = ((flow, flow.on_deadline(now, self.why_held)) for flow in due)
        effects = [effect for flow, end in ends for effect in self._track(now, flow, end)]
        if self._may_have_room:
            effects += self._place_waiting(now)
        if self.roles.is_due(now):
            effects += self.roles.evaluate(now, self.fleet.workers(), self.waiting, self.scaling.roles)
        return effects

    def pick(
        self, now: float, spec: RequestSpec, context: RequestContext, num_open: int = 0
    ) -> Assignment | Refusal | None:
        """Choose workers for a request that comes to a router later, and reserve load until it is released.

        Returns None where it has to wait for a worker: a router's queue is the place for that.

        Args:
            num_open: requests for which that was returned, and that have not begun since.
        """
        if (refusal := self.admission.examine(now, (spec,), context.tenant)) is not None:
            return refusal
        assignment = Assignment(spec, self._config.limits.placement, self.fleet, context)
        num_waiting = max(num_open, self.admission.num_waiting)
        if not num_waiting and not self.is_held:
            assignment.choose_weights(is_bound=False)
            outcome = self.admission.gate(now, context).choose(now, assignment)
            if not isinstance(outcome, Unplaceable):
                return outcome if isinstance(outcome, Refusal) else assignment
        return self.admission.refuse_waiting(num_waiting)

    def check_invariants(self) -> None:
        """Raise AssertionError when an ended flow is still known, or reservations are left over."""
        assert len(self._request_of_attempt) == len(self._deadlines) == len(self._flows)
        for request_id, flow in self._flows.items():
            assert flow.state not in TERMINAL, f"{request_id} is over"
            assert self._request_of_attempt[flow.attempt_id] == request_id
        states = {request_id: flow.state for request_id, flow in self._flows.items()}
        self.admission.check_invariants({name for name in states if states[name] is FlowState.WAITING})
        assert self._prefilling == {name for name in states if states[name] in PREFILLING}
        assert set(self._without_worker) == {name for name in states if states[name] in WITHOUT_WORKER}
        assert self._of_lines <= set(self._flows)
        if not self._flows:
            assert self.fleet.has_no_reservations, "load is reserved without requests"

    # --- parts ---

    @property
    def waiting(self) -> Waiting:
        """Requests that have no worker yet."""
        flows = [flow for flow in self._flows.values() if flow.state is FlowState.WAITING]
        num_tokens = sum(len(flow.spec.prompt_token_ids) for flow in flows)
        return Waiting(num_requests=len(flows), num_tokens=num_tokens)

    def _submit(self, now: float, event: Submit) -> list[RouterEffect]:
        spec = event.spec
        if spec.request_id in self._flows:
            taken = NameTakenError(spec.request_id)
            return [_refusal(spec.request_id, taken.code, str(taken))]
        record = open_record(now, spec, event.context, event.phases)
        self.log.open(record)
        if (refusal := self._examine(now, event)) is not None:
            record.fail(now, 0, refusal.code, refusal.message)
            self.log.close(spec.request_id)
            return [_refusal(spec.request_id, refusal.code, refusal.message, refusal.retry_after_s)]
        limits = replace(self._config.limits, timeout_s=event.timeout_s)
        gate = self.admission.take(now, spec, event.context, event.call)
        flow = RequestFlow(now, spec, limits=limits, fleet=self.fleet, gate=gate, record=record)
        self._flows[spec.request_id] = flow
        if event.context.is_batch_line:
            self._of_lines.add(spec.request_id)
        effects = self._track(now, flow, [])
        if not self.is_held:
            if self.admission.num_waiting == 1:
                effects += self._track(now, flow, flow.place(now))
            elif not self.fleet.is_ready:
                effects += self._track(now, flow, flow.fail_if_hopeless(now))
            else:
                self._may_have_room = True  # for this one, where those before it await other workers
        if flow.state is FlowState.WAITING:
            late = self.admission.check_wait(now, spec.request_id)
            if late is not None:
                effects += self._track(now, flow, flow.refuse(now, late))
        return effects

    def _examine(self, now: float, event: Submit) -> Refusal | None:
        examined = (event.spec,) if event.examined is None else event.examined
        num_requests, limit = max(1, len(examined)), self._config.max_num_requests
        if len(self._flows) + num_requests > limit:
            return self.admission.refuse_full(len(self._flows), num_requests, limit)
        tenant = event.context.tenant
        if self.is_held or (self.admission.num_waiting and self.fleet.is_ready):
            refusal = self.admission.examine_wait(now, examined, tenant)
            if refusal is not None:
                return refusal
        return self.admission.examine(now, examined, tenant, event.call)

    def _shed(self, now: float) -> list[RouterEffect]:
        """Refuse requests for which the queue is too long."""
        effects: list[RouterEffect] = []
        while (overflow := self.admission.overflow()) is not None:
            request_id, refusal = overflow
            flow = self._flows[request_id]
            effects += self._track(now, flow, flow.refuse(now, refusal))
        return effects

    def _on_worker_message(self, now: float, worker_id: str, message: ToRouter) -> list[RouterEffect]:
        match message:
            case PhaseReport():
                self.log.add_report(now, worker_id, message)
                return []
            case CacheDelta():
                self.fleet.apply_delta(worker_id, message)
                return []
            case ControlResult():
                self.fleet.update_status(worker_id, message)
                return self._place_waiting(now, is_forced=True)
            case TokenBatch(outputs=outputs):
                effects: list[RouterEffect] = []
                for output in outputs:
                    flow = self._flow(output.request_id)
                    emitted = flow.on_output(now, worker_id, output) if flow else []
                    if flow is None or not emitted:
                        self.num_wasted_tokens += len(output.token_ids)
                    else:
                        is_unchanged = (
                            flow.state is FlowState.DECODING and flow.attempt_id == output.request_id
                        )
                        effects += emitted if is_unchanged else self._track(now, flow, emitted)
                return effects
            case _:
                flow = self._flow(message.request_id)
                return self._track(now, flow, flow.on_message(now, worker_id, message)) if flow else []

    def _flow(self, attempt_id: str) -> RequestFlow | None:
        return self._flows.get(self._request_of_attempt.get(attempt_id, ""))

    def _on_worker_lost(
        self, now: float, worker_id: str, reason: str, waiting: Container[str]
    ) -> list[RouterEffect]:
        effects: list[RouterEffect] = []
        for flow in [flow for flow in self._flows.values() if flow.state is not FlowState.WAITING]:
            has_begun = flow.attempt_id not in waiting
            lost = flow.on_worker_lost(now, worker_id, reason, has_begun=has_begun)
            effects += self._track(now, flow, lost)
        return effects + self._place_waiting(now, is_forced=True)

    def _place_waiting(self, now: float, *, is_forced: bool = False) -> list[RouterEffect]:
        """Place requests that lost their worker, then dispatch from the queue: rarely, unless `is_forced`."""
        effects: list[RouterEffect] = []
        for request_id in list(self._without_worker):
            flow = self._flows[request_id]
            effects += self._track(now, flow, flow.place(now))
        self._may_have_room = self.admission.num_waiting > 0 and not self.is_held
        if not self._may_have_room or (now < self._next_dispatch_s and not is_forced):
            return effects
        effects += self._dispatch(now)
        self._may_have_room = False
        self._next_dispatch_s = now + _DISPATCH_EVERY_S if self.admission.num_waiting else -math.inf
        return effects

    def _dispatch(self, now: float) -> list[RouterEffect]:
        """Place requests of the queue; workers that an overdue one could have take none after it."""
        effects: list[RouterEffect] = []
        queue, kept = self.admission.queue, dict[str, str]()
        for request_id in queue.dispatch():
            flow = self._flows[request_id]
            effects += self._track(now, flow, flow.place(now, kept))
            if queue.is_overdue(request_id):
                kept |= dict.fromkeys(flow.fitting_workers(now), _KEPT)
                if len(kept) == len(self.fleet.members):
                    break
        return effects

    def _track(self, now: float, flow: RequestFlow, effects: list[RouterEffect]) -> list[RouterEffect]:
        """Update the maps after a flow's change of state."""
        request_id = flow.spec.request_id
        self._without_worker.pop(request_id, None)
        self._prefilling.discard(request_id)
        self._request_of_attempt.pop(self._attempt_of.pop(request_id, ""), None)
        if flow.state in TERMINAL:
            del self._flows[request_id]
            self.log.close(request_id)
            self._of_lines.discard(request_id)
            self._deadlines.drop(request_id)
            self.num_migrations += flow.migrations.num_migrations
            is_finished = flow.state is FlowState.FINISHED
            self.admission.end(now, request_id, flow.num_output_tokens, is_finished=is_finished)
            self._may_have_room = True
            return effects
        match flow.state:
            case FlowState.WAITING:
                self.admission.wait(now, request_id)
            case state if state in WITHOUT_WORKER:
                self._without_worker[request_id] = None
            case _:
                self.admission.place(now, request_id)
                if flow.state in PREFILLING:
                    self._prefilling.add(request_id)
                self._may_have_room = self._may_have_room or flow.state is FlowState.DECODING
        self._deadlines.set(request_id, flow.deadline)
        self._attempt_of[request_id] = flow.attempt_id
        self._request_of_attempt[flow.attempt_id] = request_id
        return effects


_DISPATCH_EVERY_S: Final = 0.02
_KEPT: Final = "keeps its room for a request that waits longer"


def _refusal(
    request_id: str, code: ErrorCode, message: str, retry_after_s: float | None = None
) -> FailRequest:
    return FailRequest(request_id=request_id, code=code, message=message, retry_after_s=retry_after_s)
