"""The shell of a worker: one loop that feeds the core and executes its effects.

The loop thread owns the core. The engine thread computes steps, the transfer thread moves KV; both hand
their results back to the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import zmq.asyncio

from baton_core.errors import BatonError, ErrorCode
from baton_core.requests.adapter import Adapter
from baton_core.requests.attempt_names import name_at_client
from baton_core.requests.phases import PhaseReport
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.control_messages import BESIDE_STEPS
from baton_core.sessions.peer_messages import ToConsumer, ToProducer
from baton_core.sessions.router_messages import KVSource, ToRouter, ToWorker, Transferred
from baton_core.sessions.session import DEFAULT_TIMINGS, SessionTimings
from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_core.worker.step_plan import StepResult
from baton_core.worker.worker_events import (
    AbortPull,
    CacheChanged,
    CompileGrammar,
    ComputeChecksums,
    ControlDone,
    Drain,
    DropAdapter,
    FromConsumer,
    FromProducer,
    FromRouter,
    GrammarCompiled,
    Leave,
    LoadAdapter,
    Pull,
    RouterJoined,
    RouterLost,
    RunControl,
    StepDone,
    StepFailed,
    WorkerEvent,
)
from baton_decode.consumer_endpoint import ConsumerEndpoint
from baton_engine.steps.engine_thread import EngineThread
from baton_kv.connector import KVConnector
from baton_prefill.producer_endpoint import ProducerEndpoint
from baton_service.router_access import RouterAccess
from baton_service.tracing import NO_TRACING, Tracing, report_spans
from baton_worker.controls.worker_controls import WorkerControls
from baton_worker.core.controls import OpenWork
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.core.worker_core import WorkerCore
from baton_worker.core.worker_outlets import carry_out
from baton_worker.engine.adapter_loading import adapter_loaded
from baton_worker.engine.resident_engine import ResidentEngine
from baton_worker.first_pulls import FirstPulls
from baton_worker.kv_transfer import KVTransfers
from baton_worker.redis.worker_sharing import NothingSharedByWorker, WorkerSharing
from baton_worker.router_links import RouterLinks
from baton_worker.self_check import SelfCheck
from baton_worker.session_client import RouterCallbacks, SessionClient
from baton_worker.worker_metrics import WorkerMetrics

_CLOSE_WITHIN_S = 5.0
_log = logging.getLogger(__name__)


class GrammarBackend(Protocol):
    """Compiles the grammars of structured outputs, on threads of its own."""

    def compile(self, params: StructuredOutputsParams, tenant: str = "") -> Future[None]:
        """Begin in the tenant's turn.

        The future is done when sampling may begin, or raises InvalidRequestError.

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
    """The parts of a worker. The producer's endpoint is bound before the model is loaded."""

    config: WorkerConfig
    info: WorkerInfo
    engine: ResidentEngine
    controls: WorkerControls
    connector: KVConnector
    context: zmq.asyncio.Context
    producer: ProducerEndpoint
    grammars: GrammarBackend
    routers: Sequence[str]
    """Addresses (`host:port`) of the routers to serve."""
    access: RouterAccess = field(default_factory=RouterAccess)
    """Credentials for the routers."""
    model_name: str = ""
    """As metrics have it."""
    share: WorkerSharing = field(default_factory=NothingSharedByWorker)
    followers: Sequence[CacheFollower] = ()
    """They and `share` hear nothing of the cache unless the config has `publishes_cache`."""
    tracing: Tracing = NO_TRACING
    expected_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """Speed at which blocks should come, by transport."""
    session_timings: SessionTimings = DEFAULT_TIMINGS


class Worker:
    """Serves routers until cancelled. Make it on the loop that runs it."""

    def __init__(self, parts: WorkerParts) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = WorkerCore(parts.config)
        shared = parts.share.state if parts.share.has_locality else None
        self.metrics = WorkerMetrics(parts.model_name, self._core, shared)
        self._producer = parts.producer
        self._grammars = parts.grammars
        self._adapters = ThreadPoolExecutor(1, "adapters")
        self._followers = parts.followers
        self._worker_id = parts.info.worker_id
        self._info = parts.info
        self._tracing = parts.tracing
        self._consumer = ConsumerEndpoint(
            parts.context, f"{parts.info.worker_id}-{parts.info.epoch:x}", self._on_producer_message
        )
        first_pulls = FirstPulls(parts.expected_bytes_per_s)
        self._transfers = KVTransfers(parts.connector, self.on_event, first_pulls)
        self.metrics.first_pulls = first_pulls.by_source
        self._resident = parts.engine
        self._engine = EngineThread(parts.engine.launch, self._deliver_step)
        self._is_computing = False
        """True if the engine is to deliver a step."""
        self._controls = parts.controls
        callbacks = RouterCallbacks(
            on_joined=self._on_router_joined,
            on_message=self._on_router_message,
            on_lost=self._on_router_lost,
            on_refusal=lambda: self._routers.on_refusal(),
            on_processes=lambda router, processes: self._routers.on_processes(router, processes),
        )
        at_all = self._load, callbacks, parts.session_timings, parts.access
        self._routers = RouterLinks(
            parts.routers,
            lambda address, is_process: SessionClient(address, self._info, *at_all, names_process=is_process),
            finds_more=parts.share.finds_routers,
        )
        self.metrics.refusals = lambda: self._routers.refusals
        self.metrics.unreachable = lambda: self._routers.unreachable
        self._share = parts.share
        self._check = SelfCheck(self._core, self._loop.time)
        self._timer: asyncio.TimerHandle | None = None
        self._logged_failing = ""
        self._has_left = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled, or told to `leave`; then say farewell to the cluster and stop the threads.

        Raises:
            IncompatibleWorkerError: no router will ever take this worker.
            RequestError: UNAVAILABLE, another rank of its model is lost.
        """
        self._engine.start()
        self._transfers.start()
        tasks = (
            asyncio.create_task(self._producer.receive(self._on_consumer_message)),
            asyncio.create_task(self._routers.run()),
            asyncio.create_task(self._share.run(self._routers.on_found)),
            asyncio.create_task(self._has_left.wait()),
            asyncio.create_task(self._resident.wait_lost()),
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

    def drain(self) -> OpenWork:
        """Take no new requests, and return what is open still."""
        if not self._core.controls.status.is_draining:
            _log.info("draining: %s are open", self._core.open_work)
            self.on_event(Drain())
        return self._core.open_work

    def on_event(self, event: WorkerEvent) -> None:
        """Feed the core and do what it says."""
        carry_out(self._core.on_event(self._loop.time(), event), self)
        self._check.note()
        self._log_failing()
        self._schedule_next()

    def _log_failing(self) -> None:
        """Say once that the worker takes no requests because its steps fail, and that it takes some again."""
        failing = self._core.controls.status.failing
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
        self.on_event(FromRouter(router_id=router_id, message=message))

    def _on_consumer_message(self, peer_id: bytes, message: ToProducer) -> None:
        self.on_event(FromConsumer(peer_id=peer_id, message=message))

    def _on_producer_message(self, message: ToConsumer) -> None:
        self.on_event(FromProducer(message=message))

    def _deliver_step(self, result: StepResult | Exception) -> None:
        self._loop.call_soon_threadsafe(self._on_step, result)

    def _on_step(self, result: StepResult | Exception) -> None:
        if self._resident.is_lost:
            return  # `run` ends, and requests move to other workers
        self._is_computing = False
        if isinstance(result, StepResult):
            self.on_event(StepDone(result=result))
            return
        _log.error("a step failed", exc_info=result)
        self.on_event(StepFailed(message=f"the engine failed: {type(result).__name__}: {result}"))

    def _deliver_grammar(self, compilation_id: int, grammar: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._on_grammar, compilation_id, grammar)

    def _on_grammar(self, compilation_id: int, grammar: Future[None]) -> None:
        if not grammar.cancelled():
            self.on_event(grammar_compiled(compilation_id, grammar.exception()))

    def _deliver_adapter(self, adapter: Adapter, loading: Future[float]) -> None:
        if loading.cancelled():
            return
        with suppress(RuntimeError):  # the loop is closed: nobody waits for it
            self._loop.call_soon_threadsafe(self.on_event, adapter_loaded(adapter, loading))

    def _answer_control(self, asked: RunControl) -> None:
        """Called on the engine thread, or on one of its own."""
        done = self._controls.answer(asked)
        with suppress(RuntimeError):  # the loop is closed: nobody waits for it
            self._loop.call_soon_threadsafe(self._on_control_done, done)

    def _on_control_done(self, done: ControlDone) -> None:
        self.on_event(done)
        if (identity := self._core.config.identity) != self._info.identity:
            self._info = replace(self._info, identity=identity)
            self._routers.register_as(self._info)

    def _on_deadline(self) -> None:
        self._timer = None
        effects = self._core.on_deadline(self._loop.time())
        self._log_failing()
        carry_out(effects, self)
        if effects:
            self._check.note()
        self._schedule_next()

    def _load(self) -> WorkerLoad:
        return replace(self._core.load(self._loop.time()), figures=self.metrics.figures)

    # --- what goes out ---

    def _schedule_next(self) -> None:
        """Keep the engine busy and the timer set."""
        if not self._is_computing:
            self._compute()
        if self._timer is not None:
            self._timer.cancel()
        if self._core.shutdown.is_over(self._loop.time(), self._core.open_work):
            self._end()
        self._check.evaluate()
        deadlines = [
            one for one in (self._core.next_deadline(), self._check.next_deadline()) if one is not None
        ]
        self._timer = self._loop.call_at(min(deadlines), self._on_deadline) if deadlines else None

    def _compute(self) -> None:
        """Have what can be planned now launched, and the first step delivered that is in flight."""
        plans = tuple(iter(partial(self._core.schedule, self._loop.time()), None))
        for plan in plans:
            self.metrics.on_step(plan)
        if self._core.scheduler.in_flight:
            self._engine.submit(*plans)
            self._is_computing = True

    def _end(self) -> None:
        if not self._has_left.is_set() and self._core.open_work:
            _log.warning("the time to leave is over; %s are left open", self._core.open_work)
        self._has_left.set()

    def send_to_router(self, router_id: str, message: ToRouter) -> None:
        self.metrics.on_message(message)
        if isinstance(message, Transferred) and message.num_recomputed_tokens:
            name = {"request_id": name_at_client(message.request_id)}
            level = logging.INFO if message.is_cancel_the_cause else logging.WARNING
            _log.log(level, "%d prompt tokens are computed again", message.num_recomputed_tokens, extra=name)
        if isinstance(message, PhaseReport):
            spans = report_spans(self._worker_id, message)
            self._tracing.export(self._loop.time(), message.traceparent, spans)
        self._routers.send(router_id, message)

    def send_to_consumer(self, peer_id: bytes, message: ToConsumer) -> None:
        self._producer.send(peer_id, message)

    def send_to_producer(self, source: KVSource, message: ToProducer) -> None:
        self._consumer.send(source.peer_address, message)

    def transfer(self, effect: ComputeChecksums | Pull | AbortPull) -> None:
        self._transfers.execute(effect)

    def compile_grammar(self, effect: CompileGrammar) -> None:
        try:
            grammar = self._grammars.compile(effect.structured_outputs, effect.tenant)
        except BatonError as error:
            self._loop.call_soon(self.on_event, grammar_compiled(effect.compilation_id, error))
        else:
            grammar.add_done_callback(partial(self._deliver_grammar, effect.compilation_id))

    def load_adapter(self, effect: LoadAdapter) -> None:
        loading = self._adapters.submit(self._resident.load_adapter, effect.adapter)
        loading.add_done_callback(partial(self._deliver_adapter, effect.adapter))

    def drop_adapter(self, effect: DropAdapter) -> None:
        self._adapters.submit(self._resident.drop_adapter, effect.digest)

    def run_control(self, effect: RunControl) -> None:
        answer = partial(self._answer_control, effect)
        if effect.action in BESIDE_STEPS:
            threading.Thread(target=answer, name=str(effect.action), daemon=True).start()
        else:
            self._engine.run(answer)

    def cache_changed(self, effect: CacheChanged) -> None:
        self._share.on_changed(effect)
        for follower in self._followers:
            follower.on_changed(effect)

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._consumer.close()
        self._producer.close()
        await asyncio.to_thread(self._grammars.close)
        await asyncio.to_thread(self._adapters.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._engine.close, _CLOSE_WITHIN_S)
        await asyncio.to_thread(self._resident.close)
        await asyncio.to_thread(self._transfers.close, _CLOSE_WITHIN_S)
        await asyncio.to_thread(self._tracing.close)


def grammar_compiled(compilation_id: int, error: BaseException | None) -> GrammarCompiled:
    """The answer to a `CompileGrammar`."""
    if error is None:
        return GrammarCompiled(compilation_id=compilation_id)
    if isinstance(error, BatonError):
        return GrammarCompiled(compilation_id=compilation_id, error=str(error), code=error.code)
    _log.error("a grammar could not be compiled", exc_info=error)
    text = f"structured_outputs could not be compiled: {type(error).__name__}: {error}"
    return GrammarCompiled(compilation_id=compilation_id, error=text, code=ErrorCode.INTERNAL)
