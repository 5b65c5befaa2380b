"""The driver of the router's core: gives it events and turns its effects into calls.

The router process and both simulators drive the core with it, each with outlets of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, assert_never

from baton_core.requests.attempt_names import name_at_client
from baton_core.sessions.router_messages import Cancel, PromptLogprobs, RequestCommand, Start
from baton_router.core.flow.router_core import RouterCore
from baton_router.core.router_events import (
    ClientGone,
    EmitPromptLogprobs,
    EmitTokens,
    FailRequest,
    FinishRequest,
    RequestEffect,
    RouterEffect,
    RouterEvent,
    SendToWorker,
    SetRole,
    StopMatched,
)


class RouterOutlets(Protocol):
    """Carries out the effects of a router's core, without waiting."""

    @property
    def send_to_worker(self) -> Callable[[str, RequestCommand], None]:
        """Sends to a worker, unless its session is over."""
        ...

    def emit_tokens(self, tokens: EmitTokens) -> bool:
        """Give new tokens to the client; return True if a stop string in them ends the sequence."""
        ...

    def emit_prompt_logprobs(self, prompt_logprobs: PromptLogprobs) -> None:
        """Give log-probabilities of the prompt to the client."""
        ...

    def finish(self, finished: FinishRequest) -> None:
        """End a request's stream: all of its sequences have ended."""
        ...

    def fail(self, failed: FailRequest) -> None:
        """End a request's stream with an error."""
        ...

    def give_up(self, request_id: str, error: Exception) -> ClientGone:
        """End the stream of a request of which an effect has failed, and return what the core is told."""
        ...

    @property
    def set_role(self) -> Callable[[SetRole], None]:
        """Begins to change a worker's role."""
        ...


class RouterDriver:
    """Drives one core. A failing effect ends only its own request.

    Args:
        now: the router's clock, in seconds.
    """

    def __init__(self, core: RouterCore, outlets: RouterOutlets, now: Callable[[], float]) -> None:
        self._core = core
        self._outlets = outlets
        self._now = now

    def on_event(self, event: RouterEvent) -> None:
        """Give the core an event and carry out what follows from it."""
        self._carry_out(self._core.on_event(self._now(), event))

    def on_deadline(self, now: float | None = None) -> None:
        """Have the core act on the deadlines that are over."""
        self._carry_out(self._core.on_deadline(self._now() if now is None else now))

    def _carry_out(self, effects: list[RouterEffect]) -> None:
        """Carry out all effects, then give the core the events that they caused."""
        for event in [event for event in map(self._carry_out_one, effects) if event is not None]:
            self.on_event(event)

    def _carry_out_one(self, effect: RouterEffect) -> RouterEvent | None:
        if isinstance(effect, SetRole):
            self._outlets.set_role(effect)
            return None
        try:
            match effect:
                case EmitTokens():
                    if self._outlets.emit_tokens(effect):
                        return StopMatched(request_id=effect.request_id, index=effect.output.index)
                case SendToWorker(worker_id=worker_id, message=message):
                    self._outlets.send_to_worker(worker_id, message)
                case EmitPromptLogprobs(prompt_logprobs=prompt_logprobs):
                    self._outlets.emit_prompt_logprobs(prompt_logprobs)
                case FinishRequest():
                    self._outlets.finish(effect)
                case FailRequest():
                    self._outlets.fail(effect)
                case _:
                    assert_never(effect)
        except Exception as error:
            return self._outlets.give_up(_request_of(effect), error)
        return None


def _request_of(effect: RequestEffect) -> str:
    """Return the name that an effect's request has at its client."""
    match effect:
        case EmitPromptLogprobs(prompt_logprobs=prompt_logprobs):
            return prompt_logprobs.request_id
        case SendToWorker(message=message):
            if isinstance(message, Start | Cancel):
                return name_at_client(message.request_id)
            return name_at_client(message.spec.request_id)
        case EmitTokens() | FinishRequest() | FailRequest():
            return effect.request_id
    assert_never(effect)
