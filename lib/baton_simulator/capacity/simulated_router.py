"""The router under virtual time: the production core, whose decisions take no time, and what clients see."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from baton_core.requests.request_context import RequestContext, Slo
from baton_core.requests.sampling_params import SamplingParams
from baton_core.routing.router_core import RouterConfig, RouterCore
from baton_core.routing.router_events import (
    EmitTokens,
    FailRequest,
    FinishRequest,
    RouterEffect,
    RouterEvent,
    SendToWorker,
    Submit,
)
from baton_core.sessions.router_messages import RequestSpec, ToWorker
from baton_simulator.capacity.fate import Fate
from baton_simulator.capacity.workload import Ask
from baton_simulator.clock import Clock

TIMEOUT_S: Final = 600.0
"""Of a request: that of a router, unless it is told otherwise."""
Send = Callable[[str, ToWorker], None]


class SimulatedRouter:
    """Owns the requests of all clients.

    Args:
        send: takes what is for a worker.
        message_s: from the router to a client.
        slo: what requests ask of it.
        tokens_per_step: that every token after the first stands for.
    """

    def __init__(
        self,
        clock: Clock,
        config: RouterConfig,
        send: Send,
        *,
        message_s: float,
        slo: Slo,
        tokens_per_step: int,
    ) -> None:
        self.core = RouterCore(config)
        self.fates: dict[str, Fate] = {}
        """By the request's name, in the order of arrival."""
        self.num_ended = 0
        self._clock = clock
        self._send = send
        self._message_s = message_s
        self._slo = slo
        self._tokens_per_step = tokens_per_step
        self._wake_at: float | None = None

    def submit(self, ask: Ask) -> None:
        self.fates[ask.name] = Fate(ask=ask)
        max_tokens = 1 + -(-(ask.num_tokens - 1) // self._tokens_per_step)
        params = SamplingParams(seed=0, temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        spec = RequestSpec(request_id=ask.name, prompt_token_ids=ask.prompt_token_ids(), params=params)
        context = RequestContext(session_id=ask.session_id, slo=self._slo, arrived_s=self._clock.now)
        self.on_event(Submit(spec=spec, timeout_s=TIMEOUT_S, context=context))

    def on_event(self, event: RouterEvent) -> None:
        self._execute(self.core.on_event(self._clock.now, event))
        self._arm()

    def _arm(self) -> None:
        due_s = self.core.next_deadline()
        if due_s is not None and (self._wake_at is None or due_s < self._wake_at):
            self._wake_at = due_s
            self._clock.after(max(0.0, due_s - self._clock.now), partial(self._wake, due_s))

    def _wake(self, due_s: float) -> None:
        if self._wake_at == due_s:
            self._wake_at = None
            self._execute(self.core.on_deadline(max(due_s, self._clock.now)))
            self._arm()

    def _execute(self, effects: list[RouterEffect]) -> None:
        for effect in effects:
            match effect:
                case SendToWorker(worker_id=worker_id, message=message):
                    self._send(worker_id, message)
                case EmitTokens(request_id=request_id):
                    fate = self.fates[request_id]
                    if fate.first_token_s is None:
                        fate.first_token_s = self._clock.now + self._message_s
                case FinishRequest():
                    self._finish(effect)
                case FailRequest(request_id=request_id, message=text):
                    self._end(self.fates[request_id], error=text)
                case _:
                    raise AssertionError(f"nobody asked this router for {effect}")

    def _finish(self, finished: FinishRequest) -> None:
        fate, timings = self.fates[finished.request_id], finished.timings
        fate.num_cached_tokens = finished.num_cached_tokens
        fate.is_split = timings.decode_worker not in ("", timings.prefill_worker)
        self._end(fate)

    def _end(self, fate: Fate, error: str = "") -> None:
        assert fate.ended_s is None, f"{fate.ask.name} ended twice"
        fate.ended_s = self._clock.now + self._message_s
        fate.error = error
        self.num_ended += 1
