"""The router under virtual time: the production core, whose decisions take no time, and what clients see."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from baton_core.requests.attempt_names import name_at_client
from baton_core.requests.request_context import RequestContext, Slo
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import PromptLogprobs, RequestSpec, ToWorker
from baton_core.worker.step_plan import SequenceSlice
from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.core.router_driver import RouterDriver
from baton_router.core.router_events import (
    ClientGone,
    EmitTokens,
    FailRequest,
    FinishRequest,
    RouterEvent,
    SetRole,
    Submit,
)
from baton_simulator.capacity.request_result import RequestResult
from baton_simulator.capacity.workload import Ask
from baton_simulator.clock import Clock

TIMEOUT_S: Final = 600.0
"""Default timeout of a request, as a router has it."""
Send = Callable[[str, ToWorker], None]


class SimulatedRouter:
    """Owns the requests of all clients.

    Args:
        send: takes what is for a worker.
        message_s: from the router to a client.
        slo: what requests ask of it.
        tokens_per_step: that every token after the first stands for, the last one for those that are left.
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
        self.send_to_worker = send
        self._driver = RouterDriver(self.core, self, lambda: clock.now)
        self.results: dict[str, RequestResult] = {}
        """By the request's name, in the order of arrival."""
        self.num_ended = 0
        self._clock = clock
        self._message_s = message_s
        # Workers report how long a step takes, which stands for so many tokens.
        tpot_s = None if slo.tpot_s is None else slo.tpot_s * tokens_per_step
        self._slo = Slo(ttft_s=slo.ttft_s, tpot_s=tpot_s)
        self._tokens_per_step = tokens_per_step
        self._wake_at: float | None = None

    def submit(self, ask: Ask) -> None:
        result = self.results[ask.name] = RequestResult(ask=ask)
        largest = self.core.fleet.max_model_len
        if 0 < largest < ask.num_prompt_tokens:  # this machine's memory may not hold the prompt either
            needed = ask.num_prompt_tokens + ask.num_tokens
            error = f"the request needs {needed} tokens; the largest max_model_len is {largest}"
            self._end(result, error=error)
            return
        max_tokens = 1 + -(-(ask.num_tokens - 1) // self._tokens_per_step)
        params = SamplingParams(seed=0, temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        spec = RequestSpec(request_id=ask.name, prompt_token_ids=ask.prompt_token_ids(), params=params)
        context = RequestContext(session_id=ask.session_id, slo=self._slo, arrived_s=self._clock.now)
        self.on_event(Submit(spec=spec, timeout_s=TIMEOUT_S, context=context))

    def num_tokens(self, piece: SequenceSlice) -> int:
        """Return how many tokens the one that a slice samples stands for; 1 in and behind a prompt."""
        ask = self._result_of(piece).ask
        num_decodes = piece.start - ask.num_prompt_tokens
        if num_decodes < 0 or piece.num_scheduled_tokens > 1:
            return 1
        return min(self._tokens_per_step, ask.num_tokens - 1 - num_decodes * self._tokens_per_step)

    def computed(self, piece: SequenceSlice, idle_s: float) -> None:
        """Take note how long a slice waited for the end of its step; a first token is sent at that end."""
        result = self._result_of(piece)
        result.idle_s = idle_s if piece.start >= result.ask.num_prompt_tokens else 0.0

    def _result_of(self, piece: SequenceSlice) -> RequestResult:
        return self.results[name_at_client(piece.seq_id.request_id)]

    def on_event(self, event: RouterEvent) -> None:
        self._driver.on_event(event)
        self._arm()

    def _arm(self) -> None:
        due_s = self.core.next_deadline()
        if due_s is not None and (self._wake_at is None or due_s < self._wake_at):
            self._wake_at = due_s
            self._clock.after(max(0.0, due_s - self._clock.now), partial(self._wake, due_s))

    def _wake(self, due_s: float) -> None:
        if self._wake_at == due_s:
            self._wake_at = None
            self._driver.on_deadline(max(due_s, self._clock.now))
            self._arm()

    # --- effects ---

    def emit_tokens(self, tokens: EmitTokens) -> bool:
        result = self.results[tokens.request_id]
        if result.first_token_s is None:
            result.first_token_s = self._clock.now + self._message_s
        return False

    def finish(self, finished: FinishRequest) -> None:
        result, timings = self.results[finished.request_id], finished.timings
        result.num_cached_tokens = finished.num_cached_tokens
        result.is_split = timings.decode_worker not in ("", timings.prefill_worker)
        self._end(result)

    def fail(self, failed: FailRequest) -> None:
        num_tokens = self._tokens_per_step
        note = "" if num_tokens == 1 else f" (here {num_tokens} tokens, which a step makes, count as one)"
        self._end(self.results[failed.request_id], error=failed.message + note)

    def give_up(self, request_id: str, error: Exception) -> ClientGone:
        raise error

    def emit_prompt_logprobs(self, prompt_logprobs: PromptLogprobs) -> None:
        raise AssertionError(f"nobody asked this router for {prompt_logprobs}")

    def set_role(self, change: SetRole) -> None:
        raise AssertionError(f"nobody asked this router for {change}")

    def _end(self, result: RequestResult, error: str = "") -> None:
        assert result.ended_s is None, f"{result.ask.name} ended twice"
        result.ended_s = self._clock.now + self._message_s - (0.0 if error else result.idle_s)
        result.error = error
        self.num_ended += 1
