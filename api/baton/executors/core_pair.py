"""The core of a router and that of its one worker, in the calling thread."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from baton.executors.executor import ExecutorLoad
from baton_core.errors import BatonError
from baton_core.requests.adapter import Adapter
from baton_core.requests.phases import PhaseReport
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.worker_info import Role
from baton_core.worker.step_plan import StepPlan
from baton_core.worker.worker_events import (
    AdapterLoaded,
    CacheChanged,
    CompileGrammar,
    DropAdapter,
    FromRouter,
    LoadAdapter,
    RouterJoined,
    SendToRouter,
    StepDone,
    StepFailed,
    WorkerEffect,
    WorkerEvent,
)
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.request_record import RequestRecord
from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.router_events import (
    ClientGone,
    EmitPromptLogprobs,
    EmitTokens,
    FailRequest,
    FinishRequest,
    FromWorker,
    RouterEffect,
    RouterEvent,
    SendToWorker,
    SetRole,
    WorkerJoined,
)
from baton_service.tracing import NO_TRACING, Tracing, report_spans
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.core.worker_core import WorkerCore
from baton_worker.engine.adapter_loading import adapter_loaded
from baton_worker.engine.resident_engine import ResidentEngine
from baton_worker.worker_process import worker_info
from baton_worker.worker_shell import CacheFollower, GrammarBackend, grammar_compiled

_ROUTER_ID = "in-process"
ClientEffect: TypeAlias = EmitTokens | EmitPromptLogprobs | FinishRequest | FailRequest


class CorePair:
    """Carries messages between the two until neither has any left."""

    def __init__(
        self,
        config: WorkerConfig,
        grammars: GrammarBackend,
        engine: ResidentEngine,
        followers: Sequence[CacheFollower] = (),
        tracing: Tracing = NO_TRACING,
    ) -> None:
        limits = FlowLimits(placement=PlacementConfig(split=SplitMode.NEVER), queue_s=math.inf)
        self.effects: deque[ClientEffect] = deque()
        """Effects for clients, in order; the reader empties it."""
        self._router = RouterCore(RouterConfig(limits=limits))
        self._worker = WorkerCore(replace(config, pauses_when_failing=False))  # there is no other
        self._grammars, self._engine = grammars, engine
        self._followers = followers
        self._tracing = tracing
        self._to_router: deque[RouterEvent] = deque()
        self._to_worker: deque[WorkerEvent] = deque([RouterJoined(router_id=_ROUTER_ID)])
        self._router.on_event(time.monotonic(), WorkerJoined(info=worker_info(Role.MIXED, config, "", b"")))

    def carry_on(self, previous: CorePair) -> None:
        """Count on from other cores without open requests, and know the adapters that they have loaded."""
        mine, theirs = self._worker, previous._worker
        mine.scheduler.num_preemptions = theirs.scheduler.num_preemptions
        mine.scheduler.speculation.counts = theirs.scheduler.speculation.counts
        mine.pool.residency = theirs.pool.residency
        mine.preparations.adapters.adopt(theirs.preparations.adapters)

    def drop_adapters(self) -> None:
        """Drop the adapters that are loaded and that no request uses."""
        self._work(self._worker.preparations.adapters.drop_idle())

    def pin_adapters(self, numbers: frozenset[int]) -> None:
        """Keep these adapters loaded, as `AdapterCache.pin` does."""
        self._worker.preparations.adapters.pin(numbers)

    def require_place(self, adapter: Adapter | None) -> None:
        """Refuse an adapter while others are pinned in all places.

        Raises:
            InvalidRequestError: naming it.
        """
        self._worker.preparations.adapters.require_place(adapter)

    def record(self, request_id: str) -> RequestRecord | None:
        """Return the router's record of a request."""
        return self._router.log.get(request_id)

    def feed(self, event: RouterEvent) -> None:
        """Pass an event to the router's core."""
        self._to_router.append(event)
        self._exchange()

    def abandon(self, request_id: str) -> None:
        """End a request whose client reads no more: its end is no effect."""
        self.feed(ClientGone(request_id=request_id))
        ends = [one for one in self.effects if isinstance(one, FailRequest) and one.request_id == request_id]
        for end in ends:
            self.effects.remove(end)

    @property
    def is_step_in_flight(self) -> bool:
        return bool(self._worker.scheduler.in_flight)

    def plan(self) -> tuple[StepPlan, ...]:
        """The steps that can be planned now, to be computed in order."""
        return tuple(iter(partial(self._worker.schedule, time.monotonic()), None))

    def forget_blocks(self) -> bool:
        """Preempt all sequences and forget what is cached; returns whether no block is in use any more."""
        self._worker.scheduler.preempt_all(time.monotonic())
        self._worker.pool.forget_cached()
        return not self._worker.pool.num_used

    def finish_step(self, result: StepDone | StepFailed) -> None:
        """Pass the result of the first step in flight to the worker's core."""
        self._to_worker.append(result)
        self._exchange()

    def load(self) -> ExecutorLoad:
        """Return the current load of the worker, from any thread: it only reads sizes, and copies."""
        scheduler, pool = self._worker.scheduler, self._worker.pool
        residency = pool.residency
        return ExecutorLoad(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_deferred=self._worker.num_deferred,
            kv_cache_usage=1.0 - pool.num_available / pool.num_blocks,
            num_preemptions=scheduler.num_preemptions,
            drafts=scheduler.speculation.counts if self._worker.config.speculative else None,
            block_residency=() if residency is None else residency.distributions,
        )

    def _exchange(self) -> None:
        while self._to_router or self._to_worker:
            if self._to_router:
                self._route(self._router.on_event(time.monotonic(), self._to_router.popleft()))
            else:
                self._work(self._worker.on_event(time.monotonic(), self._to_worker.popleft()))

    def _route(self, effects: list[RouterEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendToWorker):
                self._to_worker.append(FromRouter(router_id=_ROUTER_ID, message=effect.message))
            elif not isinstance(effect, SetRole):
                self.effects.append(effect)

    def _work(self, effects: list[WorkerEffect]) -> None:
        for effect in effects:
            match effect:
                case SendToRouter(message=message):
                    worker_id = self._worker.config.worker_id
                    if isinstance(message, PhaseReport):
                        spans = report_spans(worker_id, message)
                        self._tracing.export(time.monotonic(), message.traceparent, spans)
                    self._to_router.append(FromWorker(worker_id=worker_id, message=message))
                case CompileGrammar(compilation_id=number, structured_outputs=params):
                    self._to_worker.append(grammar_compiled(number, self._compile(params)))
                case LoadAdapter(adapter=adapter):
                    self._to_worker.append(self._load_adapter(adapter))
                case DropAdapter(digest=digest):
                    self._engine.drop_adapter(digest)
                case CacheChanged():
                    for follower in self._followers:
                        follower.on_changed(effect)
                case _:
                    raise AssertionError(f"a lone worker moves no blocks: {effect}")

    def _load_adapter(self, adapter: Adapter) -> AdapterLoaded:
        """Load an adapter now."""
        loading: Future[float] = Future()
        try:
            loading.set_result(self._engine.load_adapter(adapter))
        except Exception as error:
            loading.set_exception(error)
        return adapter_loaded(adapter, loading)

    def _compile(self, params: StructuredOutputsParams) -> BaseException | None:
        """Compile a grammar now; returns the error, or None."""
        try:
            return self._grammars.compile(params).exception()
        except BatonError as error:
            return error
