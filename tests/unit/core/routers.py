"""A router's core whose client and workers are played by a test."""

from __future__ import annotations

from typing import Any

from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.requests.request_context import RequestContext
from baton_core.sessions.router_messages import FirstToken, Refused, SequenceOutput, TokenBatch, ToRouter
from baton_core.sessions.worker_info import Role, WorkerLoad
from baton_router.core.admission.admission import AdmissionConfig
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.flow_state import FlowState
from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.placement.routing_policies import RoutingPolicy
from baton_router.core.router_events import (
    EmitTokens,
    FailRequest,
    FinishRequest,
    FromWorker,
    RouterEvent,
    SendToWorker,
    Submit,
    WorkerJoined,
    WorkerReported,
)
from tests.builders import make_request, make_worker_info

ROLES = {"p": Role.PREFILL, "d": Role.DECODE, "m": Role.MIXED}
FAR = 1e9
OPEN_TO_ALL = AdmissionConfig()
NO_CONTEXT = RequestContext()


def make_fleet(*worker_ids: str, **changes: Any) -> Fleet:
    fleet = Fleet()
    for worker_id in worker_ids:
        fleet.join(make_worker_info(worker_id, **changes))
    return fleet


class Client:
    """Feeds the core and files its effects. Workers are named by role: p, p2, d, d2, m."""

    def __init__(
        self,
        *worker_ids: str,
        split: SplitMode = SplitMode.ALWAYS,
        policy: RoutingPolicy = RoutingPolicy.COST,
        admission: AdmissionConfig = OPEN_TO_ALL,
        **limits: Any,
    ) -> None:
        placement = PlacementConfig(split=split, policy=policy)
        flow_limits = FlowLimits(placement=placement, **limits)
        self.core = RouterCore(RouterConfig(limits=flow_limits, admission=admission))
        self.sent: list[tuple[str, Any]] = []
        self.emitted: list[tuple[int, tuple[int, ...]]] = []
        self.ends: list[FinishRequest | FailRequest] = []
        for worker_id in worker_ids:
            self.join(worker_id)

    def feed(self, event: RouterEvent, *, now: float = 0.0) -> list[tuple[str, Any]]:
        """Take an event; returns what it sent to workers."""
        return self._file(self.core.on_event(now, event))

    def wait(self, now: float) -> list[tuple[str, Any]]:
        return self._file(self.core.on_deadline(now))

    def join(self, worker_id: str, *, now: float = 0.0, **info: Any) -> list[tuple[str, Any]]:
        return self.feed(WorkerJoined(info=make_worker_info(worker_id, ROLES[worker_id[0]], **info)), now=now)

    def submit(
        self, request_id: str = "r", *, now: float = 0.0, context: RequestContext = NO_CONTEXT, **request: Any
    ) -> list[tuple[str, Any]]:
        spec = make_request(request_id, **request)
        return self.feed(Submit(spec=spec, timeout_s=100.0, context=context), now=now)

    def says(self, worker_id: str, message: ToRouter, *, now: float = 0.0) -> list[tuple[str, Any]]:
        return self.feed(FromWorker(worker_id=worker_id, message=message), now=now)

    def heartbeat(self, worker_id: str, *, now: float = 0.0, **load_: Any) -> list[tuple[str, Any]]:
        load = WorkerLoad(**{"num_available_blocks": 1000, **load_})
        return self.feed(WorkerReported(worker_id=worker_id, load=load), now=now)

    @property
    def terminal(self) -> FinishRequest | FailRequest:
        """The one end there was."""
        (end,) = self.ends
        return end

    @property
    def finished(self) -> FinishRequest:
        assert isinstance(self.terminal, FinishRequest), self.terminal
        return self.terminal

    @property
    def code(self) -> ErrorCode:
        assert isinstance(self.terminal, FailRequest), self.terminal
        return self.terminal.code

    def _file(self, effects: list[Any]) -> list[tuple[str, Any]]:
        self.core.check_invariants()
        sent = [(one.worker_id, one.message) for one in effects if isinstance(one, SendToWorker)]
        self.sent += sent
        for effect in effects:
            if isinstance(effect, EmitTokens):
                self.emitted.append((effect.output.index, effect.output.token_ids))
            elif isinstance(effect, FinishRequest | FailRequest):
                self.ends.append(effect)
        return sent


def tokens(
    request_id: str, index: int = 0, *token_ids: int, reason: FinishReason | None = None
) -> SequenceOutput:
    return SequenceOutput(
        request_id=request_id, index=index, token_ids=token_ids or (6,), finish_reason=reason
    )


def first_token(request_id: str = "r", *outputs: SequenceOutput) -> FirstToken:
    return FirstToken(
        request_id=request_id,
        outputs=outputs or (tokens(request_id, 0, 5),),
        num_cached_tokens=4,
        queue_s=0.5,
        prefill_s=0.25,
    )


def batch(*outputs: SequenceOutput) -> TokenBatch:
    return TokenBatch(outputs=outputs)


def refused(request_id: str = "r", code: ErrorCode = ErrorCode.OVERLOADED) -> Refused:
    return Refused(request_id=request_id, code=code, message="no room")


def client_in(state: FlowState) -> Client:
    """A client with one request in the given state, on workers p and d."""
    client = Client("p", "d", split=SplitMode.NEVER if state is FlowState.LOCAL else SplitMode.ALWAYS)
    client.submit()
    if state is FlowState.WAITING:
        client.says("d", refused())
    if state in (FlowState.DECODING, FlowState.AWAITING_DECODE):
        client.says("p", first_token())
    if state is FlowState.AWAITING_DECODE:
        client.says("d", refused())
    assert not client.ends
    return client
