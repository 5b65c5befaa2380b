"""The shell of a worker: one loop that feeds the core and executes its effects.

The loop thread owns the core. The engine thread computes steps, the transfer thread moves KV; both hand
their results back to the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, assert_never

import zmq.asyncio

from baton.worker.first_pulls import FirstPulls
from baton.worker.kv_transfer import KVTransfers
from baton.worker.resident_engine import ResidentEngine
from baton.worker.router_links import RouterLinks
from baton.worker.self_check import SelfCheck
from baton.worker.worker_controls import WorkerControls
from baton.worker.worker_metrics import WorkerMetrics
from baton_core.blocks.peer_messages import ToHolder, ToPuller
from baton_core.errors import BatonError, ErrorCode
from baton_core.requests.phases import PhaseReport
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.routing.request_log import name_at_client
from baton_core.sessions.router_messages import ToRouter, ToWorker, Transferred
from baton_core.sessions.session import DEFAULT_TIMINGS, SessionTimings
from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_core.worker.step_plan import StepResult
from baton_core.worker.worker_config import WorkerConfig
from baton_core.worker.worker_core import WorkerCore
from baton_core.worker.worker_events import (
    AbortPull,
    CacheChanged,
    HolderSaid,
    Leave,
    Prepare,
    Prepared,
    Pull,
    PullerSaid,
    RouterJoined,
    RouterLost,
    RouterSaid,
    RunControl,
    Seal,
    SendToHolder,
    SendToPuller,
    SendToRouter,
    StepDone,
    StepFailed,
    WorkerEffect,
    WorkerEvent,
)
from baton_decode.puller_endpoint import PullerEndpoint
from baton_engine.engine_thread import EngineThread
from baton_kv.connector import KVConnector
from baton_prefill.holder_endpoint import HolderEndpoint
from baton_service.phase_spans import report_spans
from baton_service.router_access import RouterAccess
from baton_service.session_client import RouterCallbacks, SessionClient
from baton_service.shared_state.shares import NothingSharedByWorker, WorkerSharing
from baton_service.tracing import NO_TRACING, Tracing

_CLOSE_WITHIN_S = 5.0
_log = logging.getLogger(__name__)


class OutputForms(Protocol):
    """Compiles the forms of outputs, on threads of its own."""

    def compile(self, params: StructuredOutputsParams) -> Future[None]:
        """Begin; the future is done when drawing may begin, or raises InvalidRequestError.

        Raises:
            BatonError: it cannot begin.
        """
        ...

    def close(self) -> None: ...


class CacheFollower(Protocol):
    """Hears of every change of the cache, on the loop, and must not hold it up."""

    def on_changed(self, changed: CacheChanged) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """What a worker is put together from. The holder's endpoint is bound before the model is loaded."""

    config: WorkerConfig
    info: WorkerInfo
    engine: ResidentEngine
    controls: WorkerControls
    connector: KVConnector
    context: zmq.asyncio.Context
    holder: HolderEndpoint
    forms: OutputForms
    routers: Sequence[str]
    """Addresses (`host:port`) of the routers to serve."""
    access: RouterAccess = field(default_factory=RouterAccess)
    """How routers let it in."""
    model_name: str = ""
    """As metrics have it."""
    share: WorkerSharing = field(default_factory=NothingSharedByWorker)
    followers: Sequence[CacheFollower] = ()
    """They and `share` hear nothing of the cache unless the config has `publishes_cache`."""
    tracing: Tracing = NO_TRACING
    expected_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """What blocks should come at, by transport."""
    session_timings: SessionTimings = DEFAULT_TIMINGS


class Worker:
    """Serves routers until cancelled. Make it on the loop that runs it."""

    def __init__(self, parts: WorkerParts) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = WorkerCore(parts.config)
        shared = parts.share.state if parts.share.has_locality else None
        self.metrics = WorkerMetrics(parts.model_name, self._core, shared)
        self._holder = parts.holder
        self._forms = parts.forms
        self._followers = parts.followers
        self._worker_id = parts.info.worker_id
        self._tracing = parts.tracing
        self._puller = PullerEndpoint(
            parts.context, f"{parts.info.worker_id}-{parts.info.epoch:x}", self._on_holder_message
        )
        first_pulls = FirstPulls(parts.expected_bytes_per_s)
        self._transfers = KVTransfers(parts.connector, self.on_event, first_pulls)
        self.metrics.first_pulls = first_pulls.by_source
        self._engine = EngineThread(parts.engine.launch, self._deliver_step)
        self._is_computing = False
        """Whether the engine is to deliver a step."""
        self._controls = parts.controls
        callbacks = RouterCallbacks(
            on_joined=self._on_router_joined,
            on_message=self._on_router_message,
            on_lost=self._on_router_lost,
        )
        self._routers = RouterLinks(
            parts.routers,
            lambda address: SessionClient(
                address, parts.info, self._load, callbacks, parts.session_timings, parts.access
            ),
        )
        self._share = parts.share
        self._check = SelfCheck(self._core, self._loop.time)
        self._timer: asyncio.TimerHandle | None = None
        self._logged_failing = ""
        self._has_left = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled, or told to `leave`; then say farewell to the cluster and stop the threads.

        Raises:
            IncompatibleWorkerError: a router rejects this worker.
        """
        self._engine.start()
        self._transfers.start()
        tasks = (
            asyncio.create_task(self._holder.receive(self._on_puller_message)),
            asyncio.create_task(self._routers.run()),
            asyncio.create_task(self._share.run(self._routers.on_found)),
            asyncio.create_task(self._has_left.wait()),
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await self._routers.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()

    def leave(self, within_s: float) -> None:
        """Take nothing new, end or give back what there is, and let `run` return, within that time."""
        _log.info("leaving within %g s: %s are open", within_s, self._core.open_work)
        self.on_event(Leave(within_s=within_s))

    def on_event(self, event: WorkerEvent) -> None:
        """Feed the core and do what it says."""
        self._execute(self._core.on_event(self._loop.time(), event))
        self._check.note()
        self._log_failing()
        self._go_on()

    def _log_failing(self) -> None:
        """Say once that the worker takes no requests because its steps fail, and that it takes some again."""
        failing = self._core.controls.standing.failing
        if failing == self._logged_failing:
            return
        self._logged_failing = failing
        if failing:
            _log.error("this worker takes no requests: %s", failing)
        else:
            _log.info("this worker takes requests again")

    # --- what comes in ---

    def _on_router_joined(self, router_id: str, has_locality: bool) -> None:
        self.metrics.num_sessions += 1
        is_written = has_locality and self._share.has_locality
        self.on_event(RouterJoined(router_id=router_id, has_locality=is_written))

    def _on_router_lost(self, router_id: str) -> None:
        self.metrics.num_sessions -= 1
        self.on_event(RouterLost(router_id=router_id))

    def _on_router_message(self, router_id: str, message: ToWorker) -> None:
        self.on_event(RouterSaid(router_id=router_id, message=message))

    def _on_puller_message(self, peer_id: bytes, message: ToHolder) -> None:
        self.on_event(PullerSaid(peer_id=peer_id, message=message))

    def _on_holder_message(self, message: ToPuller) -> None:
        self.on_event(HolderSaid(message=message))

    def _deliver_step(self, result: StepResult | Exception) -> None:
        self._loop.call_soon_threadsafe(self._on_step, result)

    def _on_step(self, result: StepResult | Exception) -> None:
        self._is_computing = False
        if isinstance(result, StepResult):
            self.on_event(StepDone(result=result))
            return
        _log.error("a step failed", exc_info=result)
        self.on_event(StepFailed(message=f"the engine failed: {type(result).__name__}: {result}"))

    def _deliver_form(self, preparation_id: int, form: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._on_form, preparation_id, form)

    def _on_form(self, preparation_id: int, form: Future[None]) -> None:
        if not form.cancelled():
            self.on_event(prepared(preparation_id, form.exception()))

    def _run_control(self, asked: RunControl) -> None:
        """Called on the engine thread."""
        self._loop.call_soon_threadsafe(self.on_event, self._controls.answer(asked))

    def _on_deadline(self) -> None:
        self._timer = None
        effects = self._core.on_deadline(self._loop.time())
        self._log_failing()
        self._execute(effects)
        if effects:
            self._check.note()
        self._go_on()

    def _load(self) -> WorkerLoad:
        return self._core.load(self._loop.time())

    # --- what goes out ---

    def _go_on(self) -> None:
        """Keep the engine busy and the timer set."""
        if not self._is_computing:
            self._compute()
        if self._timer is not None:
            self._timer.cancel()
        if self._core.departure.is_over(self._loop.time(), self._core.open_work):
            self._end()
        self._check.look()
        deadlines = [
            one for one in (self._core.next_deadline(), self._check.next_deadline()) if one is not None
        ]
        self._timer = self._loop.call_at(min(deadlines), self._on_deadline) if deadlines else None

    def _compute(self) -> None:
        """Have what can be planned now launched, and the first step delivered that is in flight."""
        plans = tuple(iter(partial(self._core.schedule, self._loop.time()), None))
        for plan in plans:
            self.metrics.on_step(plan)
        if self._core.scheduler.is_step_in_flight:
            self._engine.submit(*plans)
            self._is_computing = True

    def _end(self) -> None:
        if not self._has_left.is_set() and self._core.open_work:
            _log.warning("the time to leave is over; %s are left open", self._core.open_work)
        self._has_left.set()

    def _execute(self, effects: list[WorkerEffect]) -> None:
        for effect in effects:
            match effect:
                case SendToRouter(router_id=router_id, message=message):
                    self._send_to_router(router_id, message)
                case SendToPuller(peer_id=peer_id, message=message):
                    self._holder.send(peer_id, message)
                case SendToHolder(source=source, message=message):
                    self._puller.send(source.peer_address, message)
                case Prepare():
                    self._prepare(effect)
                case RunControl():
                    self._engine.run(partial(self._run_control, effect))
                case CacheChanged():
                    self._share.on_changed(effect)
                    for follower in self._followers:
                        follower.on_changed(effect)
                case Seal() | Pull() | AbortPull():
                    self._transfers.execute(effect)
                case _:
                    assert_never(effect)

    def _prepare(self, prepare: Prepare) -> None:
        try:
            form = self._forms.compile(prepare.structured_outputs)
        except BatonError as error:
            self._loop.call_soon(self.on_event, prepared(prepare.preparation_id, error))
        else:
            form.add_done_callback(partial(self._deliver_form, prepare.preparation_id))

    def _send_to_router(self, router_id: str, message: ToRouter) -> None:
        self.metrics.on_message(message)
        if isinstance(message, Transferred) and message.num_recomputed_tokens:
            name = {"request_id": name_at_client(message.request_id)}
            _log.warning("%d prompt tokens are computed again", message.num_recomputed_tokens, extra=name)
        if isinstance(message, PhaseReport):
            spans = report_spans(self._worker_id, message)
            self._tracing.export(self._loop.time(), message.traceparent, spans)
        self._routers.send(router_id, message)

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._puller.close()
        self._holder.close()
        await asyncio.to_thread(self._forms.close)
        await asyncio.to_thread(self._engine.close, _CLOSE_WITHIN_S)
        await asyncio.to_thread(self._transfers.close, _CLOSE_WITHIN_S)
        await asyncio.to_thread(self._tracing.close)


def prepared(preparation_id: int, error: BaseException | None) -> Prepared:
    """The answer to a `Prepare`."""
    if error is None:
        return Prepared(preparation_id=preparation_id)
    if isinstance(error, BatonError):
        return Prepared(preparation_id=preparation_id, error=str(error), code=error.code)
    _log.error("a form could not be compiled", exc_info=error)
    text = f"structured_outputs could not be compiled: {type(error).__name__}: {error}"
    return Prepared(preparation_id=preparation_id, error=text, code=ErrorCode.INTERNAL)
