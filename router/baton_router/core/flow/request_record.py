"""The record of a request, open or ended, from which it can be explained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from baton_core.errors import ErrorCode
from baton_core.requests.phases import Phase, PhaseName, TokenSources
from baton_core.requests.request_context import RequestContext
from baton_core.sessions.router_messages import RequestSpec
from baton_router.core.placement.placement_record import Decision

MAX_PLACINGS: Final = 32
"""Maximum number of placements with phases in a record; further ones are only counted."""


@dataclass(slots=True, kw_only=True)
class WorkerPart:
    """A worker's part in a request, on the router's clock."""

    worker_id: str
    attempt_id: str
    phases: tuple[Phase, ...]
    sources: TokenSources
    num_left_out: int = 0


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """Grows while the request runs; a worker's part may come after its end. Times are the router's clock."""

    request_id: str
    context: RequestContext
    num_prompt_tokens: int
    started_s: float
    """Arrival of the call."""
    waiting_s: float | None
    """Start of its wait for workers; None while it has some."""
    traceparent: str = ""
    """W3C trace context of its root span; empty where it is not traced."""
    ended_s: float | None = None
    """None while it runs."""
    code: ErrorCode | None = None
    """Code of the error that ended it."""
    message: str = ""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    first_token_s: float | None = None
    per_token_s: float = 0.0
    """Mean time between tokens after the first, of the longest sequence; 0 until it has finished."""
    phases: list[Phase] = field(default_factory=list)
    """The router's own phases."""
    num_placings: int = 0
    num_attempts: int = 0
    """Attempts of all requests of this name: each attempt has its own name at the workers."""
    decisions: list[Decision] = field(default_factory=list)
    """One for each time it was placed, in order."""
    parts: list[WorkerPart] = field(default_factory=list)

    def wait(self, now: float) -> None:
        """Begin a wait: it has no workers from here on."""
        self.waiting_s = now

    def place(self, now: float) -> None:
        """Count a placement: it has workers from here on."""
        self._end_wait(now)
        self.num_placings += 1
        if self.num_placings <= MAX_PLACINGS:
            self._add_moment(PhaseName.PLACE, now)

    def take_first_token(self, now: float, num_cached_tokens: int) -> None:
        """Record the time of the first tokens."""
        self.first_token_s = now
        self.num_cached_tokens = num_cached_tokens
        self._add_moment(PhaseName.FIRST_TOKEN, now)

    def finish(self, now: float, num_output_tokens: int, per_token_s: float = 0.0) -> None:
        """End the record: every sequence has ended."""
        self.num_output_tokens = num_output_tokens
        self.per_token_s = per_token_s
        self._end_wait(now)
        self._add_moment(PhaseName.FINISH, now)
        self.ended_s = now

    def fail(self, now: float, num_output_tokens: int, code: ErrorCode, message: str) -> None:
        """End the record with an error."""
        self.code, self.message = code, message
        self.finish(now, num_output_tokens)

    def _end_wait(self, now: float) -> None:
        if self.waiting_s is not None and self.num_placings < MAX_PLACINGS:
            self.phases.append(Phase(name=PhaseName.ADMIT, start_s=self.waiting_s, end_s=now))
        self.waiting_s = None

    def _add_moment(self, name: PhaseName, now: float) -> None:
        self.phases.append(Phase(name=name, start_s=now, end_s=now))


def open_record(
    now: float, spec: RequestSpec, context: RequestContext, phases: tuple[Phase, ...] = ()
) -> RequestRecord:
    """Return the record of a request that a router accepts now and that waits for workers."""
    return RequestRecord(
        request_id=spec.request_id,
        context=context,
        num_prompt_tokens=len(spec.prompt_token_ids),
        started_s=now if context.arrived_s is None else context.arrived_s,
        waiting_s=now,
        traceparent=spec.traceparent,
        phases=list(phases),
    )
