"""The shell around the router's core: feeds it events and carries out its effects.

Everything here runs on the router's loop, without waiting. A failing effect ends only its own request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from baton_core.errors import BatonError, ErrorCode, NameTakenError, RequestError
from baton_core.requests.phases import Phase
from baton_core.requests.request_context import NamedWorkers, RequestContext
from baton_core.sessions.control_messages import ControlResult
from baton_core.sessions.router_messages import RequestSpec, ToRouter
from baton_core.sessions.served_model import ServedModel
from baton_core.sessions.session import DEFAULT_TIMINGS, SessionTimings
from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_router.core.admission.admission_outcome import Refusal
from baton_router.core.batches.line_pace import DEFAULT_LINES_BESIDE
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.fleet.readiness import why_not_ready
from baton_router.core.fleet.role_balance import RoleBalance
from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_driver import RouterDriver
from baton_router.core.router_events import (
    ClientGone,
    FromWorker,
    HoldDispatch,
    PeerLoad,
    PeerSpending,
    PrefixUpdate,
    ProcessUpdate,
    RouterEvent,
    Submit,
    WorkerJoined,
    WorkerLeft,
    WorkerReported,
)
from baton_router.core.worker_processes import AbsentWorker
from baton_router.metrics.request_metrics import RequestMetrics
from baton_router.operations.dispatch_hold import DispatchHold
from baton_router.operations.fleet_status import FleetStatus, fleet_status
from baton_router.operations.line_gate import LineGate
from baton_router.operations.operations import Operations
from baton_router.operations.pauses import PAUSED, Pauses
from baton_router.operations.pick_holds import PickHolds
from baton_router.operations.role_shifts import RoleShifts
from baton_router.operations.transfer_probing import TransferProbing
from baton_router.process.router_effects import RouterEffects
from baton_router.process.session_server import SessionServer, WorkerCallbacks
from baton_router.redis.router_sharing import NothingSharedByRouter, RouterSharing
from baton_router.streams.client_stream import ClientStream
from baton_router.streams.request_spans import RequestSpans

_MIN_TIMER_S: Final = 0.001
"""Shortest time between two timers, so that a deadline that is never met cannot keep the loop busy."""
_log = logging.getLogger(__name__)


class Router:
    """Owns the core, the workers' sessions and the streams of running requests. Make it on its loop.

    Args:
        epoch: as of `SessionServer`.
        on_status: called with the workers' status whenever it has changed, until the router closes.
        requests: counts tokens as they come, and requests as they end.
        spans: exports requests that are over.
        checks_transfers: whether the transfer of each pair of workers is probed when both have joined.
        lines_beside: lines of batches beside other requests, as of `LinePace`.
        share: publishes to the rest of the cluster; what it receives goes to `notify`.
    """

    def __init__(
        self,
        config: RouterConfig,
        *,
        router_id: str,
        epoch: int,
        on_status: Callable[[FleetStatus], None],
        requests: RequestMetrics | None = None,
        spans: RequestSpans | None = None,
        share: RouterSharing | None = None,
        checks_transfers: bool = False,
        lines_beside: float = DEFAULT_LINES_BESIDE,
        timings: SessionTimings = DEFAULT_TIMINGS,
    ) -> None:
        self.core = RouterCore(config)
        """To be read only."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._picks = PickHolds(self._loop)
        self._on_status = on_status
        self._requests = requests or RequestMetrics()
        self.share = share or NothingSharedByRouter()
        self._status = FleetStatus()
        self._model: ServedModel | None = None
        self._is_closing = False
        callbacks = WorkerCallbacks(
            check=self.fleet.check,
            on_joined=self._on_joined,
            on_message=self._on_message,
            on_load=self._on_load,
            on_left=self._on_left,
        )
        self.sessions = SessionServer(
            router_id, epoch, callbacks, timings, has_locality=self.share.has_prefix_updates
        )
        must_split = config.limits.placement.split is SplitMode.ALWAYS
        hold = self._hold = DispatchHold(self._hold_dispatch, lambda: self.core.num_begun)
        self.transfers = TransferProbing(f"{epoch:x}", self.fleet, self.sessions.send, is_on=checks_transfers)
        self.operations = Operations(
            self.fleet,
            self.sessions.send,
            hold,
            lambda: hold.num_begun if hold.is_holding else self.core.num_requests,
            must_split=must_split,
            held_probes=self.transfers.held,
        )
        self.pauses = Pauses(self.operations.control, hold, self._abort_all)
        self.lines = LineGate(lambda: self.core.load, lines_beside)
        """Lets lines of batches begin."""
        self._shifts = RoleShifts(self.operations)
        self._effects = RouterEffects(
            self.sessions, self._shifts, self.core.log, self._requests, spans or RequestSpans()
        )
        self._driver = RouterDriver(self.core, self._effects, self._loop.time)

    @property
    def fleet(self) -> Fleet:
        """The workers, to be read only."""
        return self.core.fleet

    @property
    def roles(self) -> RoleBalance:
        """The role balancer."""
        return self.core.roles

    @property
    def is_ready(self) -> bool:
        """True if a prompt can be served now."""
        return self.fleet.is_ready and not self.pauses.is_paused

    def serve(self, model: ServedModel) -> None:
        """Let workers of this model alone join from now on."""
        self._model = model
        self.core.fleet.serve(model)

    @property
    def why_not_ready(self) -> str:
        """The reason why no prompt can be served; empty while ready."""
        if self.pauses.is_paused:
            return PAUSED
        fleet = self.fleet
        is_pooling = fleet.pooling is not None
        return why_not_ready(fleet.workers(), self.absent, fleet.weights, is_pooling=is_pooling)

    @property
    def absent(self) -> list[AbsentWorker]:
        """Workers of this router's launcher that have not joined now."""
        return self.fleet.absent(self._loop.time())

    def submit(
        self,
        stream: ClientStream,
        timeout_s: float,
        phases: tuple[Phase, ...] = (),
        examined: Sequence[RequestSpec] | None = None,
    ) -> None:
        """Start a request, after these phases; its stream then gets exactly one end.

        A client that resumes its request here ends the call that it left. `examined` is as in `Submit`.

        Raises:
            NameTakenError: a running request has its name.
        """
        if (running := self._effects.streams.get(stream.request_id)) is not None:
            if not stream.continues(running):
                raise NameTakenError(stream.request_id)
            error = RequestError(ErrorCode.CANCELLED, "its client goes on in another call")
            self._take(self._effects.give_up(stream.request_id, error))
        self._effects.streams[stream.request_id] = stream
        try:
            request = stream.request
            self._picks.release(request.context.named)
            self._take(
                Submit(
                    spec=stream.spec,
                    timeout_s=timeout_s,
                    context=request.context,
                    phases=phases,
                    examined=examined,
                    call=request.call,
                )
            )
        except Exception as error:
            self._take(self._effects.give_up(stream.request_id, error))

    def abandon(self, stream: ClientStream, error: BatonError | None = None) -> None:
        """Cancel the request of a stream that is no longer read, unless it is over.

        With an error, which ended its call, the request ends with that.
        """
        name = stream.request_id
        if self._effects.streams.get(name) is not stream:
            return
        if error is None:
            self._take(ClientGone(request_id=name))
        else:
            self._take(ClientGone(request_id=name, code=error.code, message=f"its call ended: {error}"))

    def pick(self, spec: RequestSpec, context: RequestContext, num_open: int = 0) -> NamedWorkers | None:
        """Choose workers for a request that comes to a router later; None where it has to wait for some.

        Their load is reserved until the request comes, or that router's own reservation has come here.

        Raises:
            RequestError: OVERLOADED, it cannot be served in time, or too many wait.
        """
        outcome = self.core.pick(self._loop.time(), spec, context, num_open)
        if isinstance(outcome, Refusal):
            raise RequestError(outcome.code, outcome.message, outcome.retry_after_s)
        if outcome is None:
            return None
        self.share.on_load_changed()
        return self._picks.hold(outcome)

    def notify(self, event: PrefixUpdate | PeerLoad | PeerSpending | ProcessUpdate) -> None:
        """Process an update from the rest of the cluster, or from the launcher."""
        self._take(event)

    def close(self, reason: str) -> None:
        """End all requests as UNAVAILABLE and all sessions."""
        self._is_closing = True
        self._abort_all(reason)
        self._shifts.close()
        self.operations.close()
        self.transfers.close()
        self.sessions.close()
        if self._timer is not None:
            self._timer.cancel()

    def _abort_all(self, reason: str) -> None:
        for request_id in list(self._effects.streams):
            error = RequestError(ErrorCode.UNAVAILABLE, reason)
            self._take(self._effects.give_up(request_id, error))

    # --- workers ---

    def _on_joined(self, info: WorkerInfo) -> None:
        self._take(WorkerJoined(info=info))
        self.share.on_joined(info)
        _log.info(
            "worker %s joined: role %s, %d blocks of %d tokens, at most %d tokens a sequence",
            *(info.worker_id, info.role, info.num_blocks, info.identity.block_size, info.max_model_len),
        )
        if self._model is not None and self._model.reads_otherwise(info):
            _log.warning("worker %s has another tokenizer than --tokenizer names", info.worker_id)
        self._note_status()
        self.transfers.on_joined(info)
        self.operations.on_joined(info.worker_id)

    def _on_message(self, worker_id: str, message: ToRouter) -> None:
        if self.transfers.take(worker_id, message):
            return
        self._requests.on_message(self._loop.time(), worker_id, message)
        self._take(FromWorker(worker_id=worker_id, message=message))
        if isinstance(message, ControlResult):
            self._note_status()
            self.operations.on_result(worker_id, message)

    def _on_load(self, worker_id: str, load: WorkerLoad) -> None:
        self.roles.is_balancer = self.share.is_first
        self._take(WorkerReported(worker_id=worker_id, load=load))
        self._note_status()

    def _on_left(self, worker_id: str, reason: str) -> None:
        self.share.on_left(worker_id)
        self._take(WorkerLeft(worker_id=worker_id, reason=reason))
        self._note_status()
        self.transfers.on_left(worker_id)
        self.operations.on_left(worker_id, reason)

    def _note_status(self) -> None:
        was, status = self._status, fleet_status(self.fleet, is_paused=self.pauses.is_paused)
        if self._is_closing or status == was:
            return
        self._status = status
        if status.is_ready != was.is_ready:
            _log.info("ready" if status.is_ready else f"not ready: {self.why_not_ready}")
        self._on_status(status)

    # --- events and time ---

    def _hold_dispatch(self, event: HoldDispatch) -> None:
        self._take(event)
        self._note_status()

    def _take(self, event: RouterEvent) -> None:
        self._driver.on_event(event)
        self._note_change()

    def _note_change(self) -> None:
        self._hold.note()
        self.lines.note()
        self._arm()
        self.share.on_load_changed()

    def _arm(self) -> None:
        """Keep one timer that fires no later than the core's next deadline."""
        deadline = self.core.next_deadline()
        if deadline is None or (self._timer is not None and self._timer.when() <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(max(deadline, self._loop.time() + _MIN_TIMER_S), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._driver.on_deadline()
        finally:
            self._note_change()
