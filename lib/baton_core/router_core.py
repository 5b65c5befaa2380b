"""The brain of a router: its workers and the flow of every request it has accepted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

from baton_core.errors import ErrorCode
from baton_core.fleet import Fleet
from baton_core.flow_state import TERMINAL, FlowState
from baton_core.request_flow import FlowLimits, RequestFlow
from baton_core.router_events import (
    ClientGone,
    FailRequest,
    RouterEffect,
    RouterEvent,
    StopMatched,
    Submit,
    WorkerJoined,
    WorkerLeft,
    WorkerReported,
    WorkerSaid,
)
from baton_core.router_messages import CacheDelta, TokenBatch, ToRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    limits: FlowLimits = field(default_factory=FlowLimits)
    max_num_requests: int = 4096
    """Requests accepted at a time."""


class RouterCore:
    """Events in, effects out. Owned by the router's loop."""

    def __init__(self, config: RouterConfig) -> None:
        self.fleet = Fleet()
        self._config = config
        self._flows: dict[str, RequestFlow] = {}
        self._request_of_attempt: dict[str, str] = {}
        self._attempt_of: dict[str, str] = {}

    @property
    def num_requests(self) -> int:
        return len(self._flows)

    def on_event(self, now: float, event: RouterEvent) -> list[RouterEffect]:
        """Take one event; returns what the shell has to do, in order.

        Raises:
            IncompatibleWorkerError: the worker of a `WorkerJoined` cannot be paired with the others.
        """
        match event:
            case Submit():
                return self._submit(now, event)
            case ClientGone(request_id=request_id):
                if (flow := self._flows.get(request_id)) is None:
                    return []
                return self._after(flow, flow.fail(now, ErrorCode.CANCELLED, "the client cancelled"))
            case StopMatched(request_id=request_id, index=index):
                flow = self._flows.get(request_id)
                return self._after(flow, flow.on_stop(now, index)) if flow else []
            case WorkerJoined(info=info):
                self.fleet.join(info)
                return self._place_waiting(now)
            case WorkerLeft(worker_id=worker_id, reason=reason):
                self.fleet.leave(worker_id)
                flows = list(self._flows.values())
                lost = [self._after(flow, flow.on_worker_lost(now, worker_id, reason)) for flow in flows]
                return [effect for effects in lost for effect in effects]
            case WorkerReported(worker_id=worker_id, load=load):
                self.fleet.report(worker_id, load)
                return self._place_waiting(now)
            case WorkerSaid(worker_id=worker_id, message=message):
                return self._on_worker_said(now, worker_id, message)
        assert_never(event)

    def next_deadline(self) -> float | None:
        """When `on_deadline` is due."""
        return min((flow.deadline for flow in self._flows.values()), default=None)

    def on_deadline(self, now: float) -> list[RouterEffect]:
        """Fail every request whose time is over."""
        due = [flow for flow in self._flows.values() if flow.deadline <= now]
        return [effect for flow in due for effect in self._after(flow, flow.on_deadline(now))]

    def check_invariants(self) -> None:
        """Raise AssertionError when a flow that is over is still known, or the ledger is off."""
        assert len(self._request_of_attempt) == len(self._flows)
        for request_id, flow in self._flows.items():
            assert flow.state not in TERMINAL, f"{request_id} is over"
            assert self._request_of_attempt[flow.attempt_id] == request_id
        if not self._flows:
            assert self.fleet.is_ledger_empty, "no requests, but workers are charged for some"

    # --- parts ---

    def _submit(self, now: float, event: Submit) -> list[RouterEffect]:
        spec = event.spec
        if spec.request_id in self._flows:
            return [_refusal(spec.request_id, ErrorCode.INVALID_REQUEST, _DUPLICATE.format(spec.request_id))]
        if len(self._flows) >= self._config.max_num_requests:
            text = f"the router has {len(self._flows)} requests, its maximum"
            return [_refusal(spec.request_id, ErrorCode.OVERLOADED, text)]
        limits = replace(self._config.limits, timeout_s=event.timeout_s)
        flow = RequestFlow(now, spec, limits=limits, fleet=self.fleet)
        self._flows[spec.request_id] = flow
        return self._after(flow, flow.place(now))

    def _on_worker_said(self, now: float, worker_id: str, message: ToRouter) -> list[RouterEffect]:
        match message:
            case CacheDelta():
                self.fleet.apply_delta(worker_id, message)
                return []
            case TokenBatch(outputs=outputs):
                effects: list[RouterEffect] = []
                for output in outputs:
                    if (flow := self._flow(output.request_id)) is not None:
                        effects += self._after(flow, flow.on_output(now, worker_id, output))
                return effects
            case _:
                flow = self._flow(message.request_id)
                return self._after(flow, flow.on_message(now, worker_id, message)) if flow else []

    def _flow(self, attempt_id: str) -> RequestFlow | None:
        return self._flows.get(self._request_of_attempt.get(attempt_id, ""))

    def _place_waiting(self, now: float) -> list[RouterEffect]:
        homeless = (FlowState.WAITING, FlowState.HOMELESS)
        flows = [flow for flow in self._flows.values() if flow.state in homeless]
        flows.sort(key=lambda flow: flow.spec.priority)
        return [effect for flow in flows for effect in self._after(flow, flow.place(now))]

    def _after(self, flow: RequestFlow, effects: list[RouterEffect]) -> list[RouterEffect]:
        """Keep the maps in step with a flow that has just moved."""
        request_id = flow.spec.request_id
        self._request_of_attempt.pop(self._attempt_of.pop(request_id, ""), None)
        if flow.state in TERMINAL:
            del self._flows[request_id]
        else:
            self._attempt_of[request_id] = flow.attempt_id
            self._request_of_attempt[flow.attempt_id] = request_id
        return effects


_DUPLICATE = "request_id is {!r}; allowed: a name that no running request has"


def _refusal(request_id: str, code: ErrorCode, message: str) -> FailRequest:
    return FailRequest(request_id=request_id, code=code, message=message)
