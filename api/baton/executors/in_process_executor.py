"""Router and worker in the calling thread: the same cores as the services, without a network.

Used where no workers of their own are asked for. Nothing here waits for anything but the engine: steps are
planned and launched, and the tokens of the first one are taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, assert_never
from weakref import finalize

import torch

from baton.executors.core_pair import ClientEffect, CorePair
from baton.executors.executor import ExecutorEvent, ExecutorLoad
from baton.executors.waiting_requests import WaitingRequests
from baton_core.distribution import Distribution
from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.requests.request_context import RequestContext
from baton_core.sessions.router_messages import RequestSpec
from baton_core.step_work import StepWork
from baton_core.weight_update import WeightUpdate
from baton_core.worker.step_plan import StepResult
from baton_core.worker.worker_events import StepDone, StepFailed
from baton_engine.steps.step_pipeline import StepPipeline
from baton_kv.in_process import InProcessConnector
from baton_router.core.router_events import (
    EmitPromptLogprobs,
    EmitTokens,
    FailRequest,
    FinishRequest,
    StopMatched,
    Submit,
)
from baton_router.requests.generation import PromptDelta
from baton_router.requests.request_text import RequestText
from baton_router.streams.request_spans import RequestSpans
from baton_router.text.tokenization import Tokenizer
from baton_service import vllm_metrics
from baton_service.cpu_quota import within_quota
from baton_service.process import interrupts_deferred
from baton_service.tracing_start import start_tracing
from baton_worker.controls.engine_controls import EngineControls
from baton_worker.controls.engine_operations import (
    CheckWeights,
    Control,
    FinishWeightUpdate,
    PinAdapters,
    ResetPrefixCache,
    Sleep,
    StartWeightUpdate,
    SwitchWeights,
    UpdateWeights,
    WeightUpdateStep,
)
from baton_worker.core.scheduler_config import SchedulingPolicy
from baton_worker.engine.resident_engine import ResidentEngine
from baton_worker.worker_process import WorkerSettings, cache_followers, grammar_compiler, worker_config

MAX_SUBMITTED = 512
"""Requests that the cores know at a time, beside more important ones; the rest wait here."""


class InProcessExecutor:
    """One mixed worker and its router."""

    def __init__(self, settings: WorkerSettings, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        settings.metrics.require_possible(settings.engine)
        torch.set_num_threads(within_quota(torch.get_num_threads()))
        self._grammars = grammar_compiler(settings, warms_up=False)
        self._engine = ResidentEngine(settings.engine, self._grammars, executor=settings.executor)
        self._close_engine = finalize(self, self._engine.close)
        self._close_engine.atexit = False
        try:
            loaded, capabilities = self._engine.loaded, InProcessConnector.capabilities
            epoch = time.time_ns()
            self._config = worker_config(settings, loaded, capabilities, "local", epoch)
            self._publishers = cache_followers(settings, epoch)
            self._tracing = start_tracing(settings.tracing, service="baton", instance_id=f"local-{epoch:x}")
            self._spans = RequestSpans(self._tracing, settings.model_name or settings.engine.model)
            self._cores = self._new_cores()
            self._step_tokens = Distribution(vllm_metrics.STEP_BOUNDS)
            self._work = StepWork() if self._config.metrics.model_work else None
            self._steps = StepPipeline(self._engine.launch)
            self._controls = EngineControls(self._engine)
            self._update = WeightUpdate()
            has_priorities = settings.scheduler.policy is SchedulingPolicy.PRIORITY
            self._waiting = WaitingRequests(has_priorities=has_priorities)
            self._running: dict[str, RequestText] = {}
            self.max_model_len, self.num_blocks = self._config.max_model_len, self._config.num_blocks
            self.pooling = self._config.pooling
        except BaseException:
            self._close_engine()
            raise

    @property
    def is_sleeping(self) -> bool:
        return self._engine.is_sleeping

    def submit(self, spec: RequestSpec) -> None:
        """Take a request; while level 0 of sleep pauses the engine, it waits.

        Raises:
            InvalidRequestError: an open request has its name, or its adapter has no place.
            RequestError: UNAVAILABLE, the engine sleeps without its weights or its KV cache.
        """
        request_id = spec.request_id
        if request_id in self._waiting or request_id in self._running:
            raise InvalidRequestError("request_id", request_id, "a name that no open request has")
        _ = self._engine.loaded
        self._cores.require_place(spec.adapter)
        self._waiting.add(RequestText(spec, self._tokenizer))

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests without further events; ended and unknown ones are ignored."""
        for request_id in request_ids:
            self._waiting.drop(request_id)
            if (text := self._running.pop(request_id, None)) is not None:
                self._cores.abandon(request_id)
                aborted = FailRequest(request_id=request_id, code=ErrorCode.CANCELLED, message="aborted")
                self._note_ended(text, aborted)
        self._end_idle_steps()

    def step(self) -> list[tuple[str, ExecutorEvent]]:
        """Run one step if a request is open and the engine is awake; returns its events."""
        if self.is_sleeping:
            return []
        with self._undivided():
            while (text := self._waiting.first) is not None and self._has_room:
                self._waiting.drop(text.spec.request_id)
                self._begin(text)
            if self._running and not self._cores.effects:
                self._compute()
        events: list[tuple[str, ExecutorEvent]] = []
        while self._cores.effects:
            events += self._read(self._cores.effects.popleft())
        self._end_idle_steps()
        return events

    def control(self, command: Control) -> list[Any]:
        """Do what an operator asks of the one worker there is.

        Raises:
            InvalidRequestError: it cannot be done now, or names nothing that there is.
            RequestError: UNAVAILABLE, the engine sleeps.
        """
        with self._undivided():
            return self._control(command)

    def _control(self, command: Control) -> list[Any]:
        match command:
            case ResetPrefixCache(preempts=preempts):
                return [self._reset_prefix_cache(preempts=preempts)]
            case Sleep(level=level) if level:
                if self._running or self._waiting:
                    raise InvalidRequestError("level", level, "0 while requests are open")
                answers = self._controls.run_on_ranks(command)
                if level == 2:
                    self._cores.drop_adapters()
                self._forget_blocks()
                return answers
            case PinAdapters(numbers=numbers):
                self._cores.pin_adapters(numbers)
                return [True]
            case StartWeightUpdate() | UpdateWeights() | FinishWeightUpdate():
                return self._update_weights(command)
            case _:
                self._steps.wait()
                return self._controls.run_on_ranks(command)

    def load(self) -> ExecutorLoad:
        """Return the current load of the worker, from any thread."""
        load = self._cores.load()
        num_waiting = load.num_waiting + len(self._waiting)
        return replace(load, num_waiting=num_waiting, step_tokens=self._step_tokens, work=self._work)

    def close(self) -> None:
        """End the other ranks, and the threads that compile grammars, publish events or export traces."""
        self._close_engine()
        self._grammars.close()
        for publisher in self._publishers:
            publisher.close()
        self._tracing.close()

    @property
    def _has_room(self) -> bool:
        """True if the cores may have one more request."""
        if len(self._running) >= self._config.max_num_requests:
            return False
        return len(self._running) < MAX_SUBMITTED or self._waiting.is_ahead_of_one(self._running.values())

    def _begin(self, text: RequestText) -> None:
        """Pass a request to the cores; its trace context gives way to that of its root span."""
        context = RequestContext(traceparent=text.spec.traceparent)
        text.spec = replace(text.spec, traceparent=self._spans.begin(context))
        self._running[text.spec.request_id] = text
        self._cores.feed(Submit(spec=text.spec, timeout_s=math.inf, context=context))

    def _undivided(self) -> AbstractContextManager[None]:
        """Defer Ctrl-C where other ranks go on with what this one would leave."""
        return nullcontext() if self._engine.group is None else interrupts_deferred()

    def _new_cores(self) -> CorePair:
        return CorePair(self._config, self._grammars, self._engine, self._publishers, self._tracing)

    def _note_ended(self, text: RequestText, end: FinishRequest | FailRequest) -> None:
        self._spans.on_ended(time.monotonic(), text, end, self._cores.record(end.request_id))

    def _read(self, effect: ClientEffect) -> list[tuple[str, ExecutorEvent]]:
        match effect:
            case EmitTokens(request_id=request_id, output=output, num_cached_tokens=num_cached_tokens):
                if (text := self._running.get(request_id)) is None:
                    return []
                event, is_stopped = text.push(output, num_cached_tokens)
                if is_stopped:
                    self._cores.feed(StopMatched(request_id=request_id, index=output.index))
                return [] if event is None else [(request_id, event)]
            case EmitPromptLogprobs(prompt_logprobs=part):
                is_open = part.request_id in self._running
                delta = PromptDelta(start=part.start, logprobs=part.entries)
                return [(part.request_id, delta)] if is_open else []
            case FinishRequest(request_id=request_id):
                if (text := self._running.pop(request_id, None)) is None:
                    return []
                self._note_ended(text, effect)
                return [(request_id, text.finish(effect))]
            case FailRequest(request_id=request_id, code=code, message=message):
                if (text := self._running.pop(request_id, None)) is None:
                    return []
                self._note_ended(text, effect)
                return [(request_id, RequestError(code, message))]
        assert_never(effect)

    def _end_idle_steps(self) -> None:
        """Take back the steps in flight that compute for nobody, and with them their blocks."""
        with self._undivided():
            while self._cores.is_step_in_flight and not self._running:
                self._compute()

    def _compute(self) -> None:
        plans = self._cores.plan()
        for plan in plans:
            self._step_tokens.add(sum(len(piece.token_ids) for piece in plan.slices))
            if self._work is not None and (model := self._config.metrics.model_work) is not None:
                self._work += model.of_step(plan.slices)
        if not self._cores.is_step_in_flight:
            raise RequestError(ErrorCode.INTERNAL, "requests are open, but there is nothing to compute")
        self._finish(self._steps.advance(*plans))

    def _finish(self, outcome: StepResult | BaseException) -> None:
        """Tell the cores what the first step in flight has computed."""
        if isinstance(outcome, StepResult):
            self._cores.finish_step(StepDone(result=outcome))
            return
        message = f"the engine failed: {type(outcome).__name__}: {outcome}"
        self._cores.finish_step(StepFailed(message=message))
        if not isinstance(outcome, Exception):
            raise outcome

    def _reset_prefix_cache(self, *, preempts: bool) -> bool:
        """New cores know no block; while requests are open, theirs are taken alone if it preempts."""
        if not self._running:
            self._forget_blocks()
            return True
        if not preempts:
            return False
        while self._cores.is_step_in_flight:
            self._finish(self._steps.advance())
        return self._cores.forget_blocks()

    def _update_weights(self, step: WeightUpdateStep) -> list[Any]:
        """Take a step of an update; the last one needs that no request is open."""
        match step:
            case StartWeightUpdate():
                self._update.start()
                return []
            case UpdateWeights(path=path):
                self._update.require_open()
                self._update.start()  # what was staged before gives way, fit or not
                (weights,) = self._controls.run_on_ranks(CheckWeights(path=path))
                self._update.stage(path, {self._config.worker_id: weights})
                return [weights]
        version, num_open = self._update.staged, len(self._running) + len(self._waiting)
        if num_open:
            text = f"finish_weight_update has to wait; allowed with {num_open} requests open: 0"
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._cores.drop_adapters()
        self._forget_blocks()  # also if the switch fails: it may have lost the pool by then
        switch = SwitchWeights(path=version.path, weights=version.weights)
        (weights,) = self._controls.run_on_ranks(switch)
        self._update.finish()
        self._config = self._config.with_weights(weights)
        self._replace_cores()
        return [weights]

    def _forget_blocks(self) -> None:
        """Replace the cores: new ones know no block of the pool."""
        self._steps.close()
        self._replace_cores()
        for publisher in self._publishers:
            publisher.clear()

    def _replace_cores(self) -> None:
        previous, self._cores = self._cores, self._new_cores()
        self._cores.carry_on(previous)
