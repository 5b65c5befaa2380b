"""Router and worker in the calling thread: the same cores as the services, without a network.

Used by `LLM` without workers of its own. Nothing here waits: a step is computed, its tokens are taken, the
next step is planned.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence

from baton.pool_placement import PoolPlacement
from baton.worker_process import WorkerSettings, worker_config, worker_info
from baton_core.errors import RequestError
from baton_core.placement import PlacementConfig, SplitMode
from baton_core.request_flow import FlowLimits
from baton_core.router_core import RouterConfig, RouterCore
from baton_core.router_events import (
    ClientGone,
    EmitTokens,
    FailRequest,
    FinishRequest,
    RouterEffect,
    RouterEvent,
    SendToWorker,
    StopMatched,
    Submit,
    WorkerJoined,
    WorkerSaid,
)
from baton_core.router_messages import RequestSpec
from baton_core.worker_core import WorkerCore
from baton_core.worker_events import RouterJoined, RouterSaid, SendToRouter, StepDone, StepFailed, WorkerEvent
from baton_core.worker_info import Role
from baton_engine.loading import load_runner
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_proto.v1 import baton_pb2 as pb
from baton_router.request_text import RequestText
from baton_router.tokenization import Tokenizer

MAX_SUBMITTED = 512
"""Requests that the cores know at a time; the rest wait in the caller's list."""
_ROUTER_ID = "in-process"
ClientEvent = pb.TokensEvent | pb.FinishedEvent
ClientEffect = EmitTokens | FinishRequest | FailRequest


class InProcessCluster:
    """One mixed worker and its router."""

    def __init__(self, settings: WorkerSettings, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        registry = InProcessRegistry()
        placement = PoolPlacement(lambda spec: InProcessConnector(spec, 1, registry))
        self._engine = load_runner(settings.engine, placement.allocate)
        assert placement.connector is not None, "loading places the pool"
        config = worker_config(settings, self._engine, placement.connector.capabilities, "local", 1)
        limits = FlowLimits(placement=PlacementConfig(split=SplitMode.NEVER), queue_s=math.inf)
        self._router = RouterCore(RouterConfig(limits=limits))
        self._worker = WorkerCore(config)
        self._effects: deque[ClientEffect] = deque()
        self._to_router: deque[RouterEvent] = deque()
        self._to_worker: deque[WorkerEvent] = deque([RouterJoined(router_id=_ROUTER_ID)])
        info = worker_info(Role.MIXED, config, "", placement.connector.describe())
        self._router.on_event(time.monotonic(), WorkerJoined(info=info))
        self.max_model_len = config.max_model_len

    def generate(self, specs: Sequence[RequestSpec]) -> Iterator[tuple[str, ClientEvent]]:
        """Run the requests; yields their events, each under its request's id.

        Leaving the iterator early cancels what is not over.

        Raises:
            RequestError: a request failed.
        """
        waiting = deque(RequestText(spec, self._tokenizer) for spec in specs)
        running: dict[str, RequestText] = {}
        try:
            while waiting or running:
                while waiting and len(running) < MAX_SUBMITTED:
                    text = waiting.popleft()
                    running[text.spec.request_id] = text
                    self._feed(Submit(spec=text.spec, timeout_s=math.inf))
                while self._effects:
                    yield from self._show(self._effects.popleft(), running)
                self._step()
        finally:
            for request_id in running:
                self._feed(ClientGone(request_id=request_id))
            self._effects.clear()

    def close(self) -> None:
        """There is nothing to end: memory goes with the object."""

    def _show(
        self, effect: ClientEffect, running: dict[str, RequestText]
    ) -> Iterator[tuple[str, ClientEvent]]:
        match effect:
            case EmitTokens(output=output):
                event, is_stopped = running[output.request_id].push(output)
                if event is not None:
                    yield output.request_id, event
                if is_stopped:
                    self._feed(StopMatched(request_id=output.request_id, index=output.index))
            case FinishRequest(request_id=request_id):
                yield request_id, running.pop(request_id).finish(effect)
            case FailRequest(request_id=request_id, code=code, message=message):
                del running[request_id]
                raise RequestError(code, f"{request_id}: {message}")

    def _step(self) -> None:
        plan = self._worker.schedule(time.monotonic())
        if plan is None:
            return
        result: StepDone | StepFailed = StepFailed(message="interrupted")
        try:
            result = StepDone(result=self._engine.runner.execute(plan))
        except Exception as error:
            result = StepFailed(message=f"the engine failed: {type(error).__name__}: {error}")
        finally:  # Ctrl-C too must not leave the step in flight
            self._to_worker.append(result)
            self._exchange()

    def _feed(self, event: RouterEvent) -> None:
        self._to_router.append(event)
        self._exchange()

    def _exchange(self) -> None:
        """Carry messages between the cores until neither has any left."""
        while self._to_router or self._to_worker:
            if self._to_router:
                self._route(self._router.on_event(time.monotonic(), self._to_router.popleft()))
            else:
                for effect in self._worker.on_event(time.monotonic(), self._to_worker.popleft()):
                    assert isinstance(effect, SendToRouter), "a lone worker moves no blocks"
                    self._to_router.append(WorkerSaid(worker_id="local", message=effect.message))

    def _route(self, effects: list[RouterEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendToWorker):
                self._to_worker.append(RouterSaid(router_id=_ROUTER_ID, message=effect.message))
            else:
                self._effects.append(effect)
