"""One request at the router, from its acceptance to its one terminal effect."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from baton_core.errors import ErrorCode
from baton_core.requests.attempt_names import attempt_name
from baton_core.sessions.router_messages import (
    Cancel,
    Failed,
    FirstToken,
    FirstTokenOf,
    Generate,
    Pooled,
    Prefill,
    PromptLogprobs,
    Refused,
    RequestCommand,
    RequestSpec,
    Reserve,
    Reserved,
    SequenceOutput,
    Start,
    Transferred,
)
from baton_core.worker.step_plan import PooledValues
from baton_router.core.admission.admission_gate import AdmissionGate
from baton_router.core.admission.admission_outcome import Refusal
from baton_router.core.admission.assignment import Assignment
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.flow_state import (
    NEEDED_HALVES,
    PREFILLING,
    TERMINAL,
    TRANSITIONS,
    FlowInput,
    FlowState,
)
from baton_router.core.flow.migration import Migrations
from baton_router.core.flow.request_record import RequestRecord
from baton_router.core.flow.request_timings import finish, measure_request
from baton_router.core.flow.token_stream import TokenStream
from baton_router.core.placement.eligibility import Unplaceable
from baton_router.core.placement.placement import Placement
from baton_router.core.router_events import FailRequest, RouterEffect, SendToWorker

FlowMessage = Reserved | Refused | PromptLogprobs | FirstToken | Pooled | Transferred | Failed


class RequestFlow:
    """Admits, places, migrates and cancels a request. Methods return effects.

    `attempt_id` names the request at the workers. It changes when the request is placed again and when its
    name is reused, so a late message of an earlier attempt has no effect.
    """

    def __init__(
        self,
        now: float,
        spec: RequestSpec,
        *,
        limits: FlowLimits,
        fleet: Fleet,
        gate: AdmissionGate,
        record: RequestRecord,
    ) -> None:
        self.spec = spec
        self.attempt_id = spec.request_id
        self._fleet = fleet
        self._limits = limits
        self._gate = gate
        self._record = record
        self._state = FlowState.WAITING
        self._entered_s = {FlowState.WAITING: now}
        """Time of the first entry: refusals restart no wait; each attempt waits anew for a decode worker."""
        self._accepted_s = self._placed_s = now
        self.migrations = Migrations(limits.migrations)
        self._assignment = Assignment(spec, limits.placement, fleet, record.context)
        record.decisions = self._assignment.decisions
        self._why_waiting = "others wait before it"
        self._stream = TokenStream(now, spec)
        self._first: FirstToken | None = None
        self._transferred: Transferred | None = None
        self._has_decoded = False
        """True if the decode worker of this attempt has sent tokens."""
        self._attempt = spec
        """The specification that the workers of this attempt have."""
        self._last_placement: Placement | None = None

    @property
    def state(self) -> FlowState:
        return self._state

    @property
    def num_output_tokens(self) -> int:
        """Tokens emitted so far, of all sequences."""
        return self._stream.num_tokens

    @property
    def deadline(self) -> float:
        """Time at which `on_deadline` is due."""
        entered_s = self._entered_s[self._state]
        ends = {"give_up_s": self._gate.give_up_s, "migrating_until_s": self.migrations.wait_until_s}
        return self._limits.deadline(self._state, entered_s, accepted_s=self._accepted_s, **ends)

    # --- inputs ---

    def place(self, now: float, kept: dict[str, str] | None = None) -> list[RouterEffect]:
        """Place the request, at the start and whenever workers may have room again; not at those `kept`."""
        self._assignment.forget_refusals()
        self._assignment.kept = kept or {}
        match self._state:
            case FlowState.WAITING | FlowState.MIGRATING:
                return self._place(now)
            case FlowState.AWAITING_DECODE:
                return self._reassign(now)
            case _:
                return []

    def fitting_workers(self, now: float) -> list[str]:
        """Return the workers that could take the request, or a part of it, if they had room."""
        return self._assignment.fitting_workers(now)

    def fail_if_hopeless(self, now: float) -> list[RouterEffect]:
        """End a new request that no worker could take even with room: it need not wait behind others."""
        why = self._assignment.why_hopeless(now)
        return self.fail(now, ErrorCode.UNAVAILABLE, why) if why else []

    def on_message(self, now: float, worker_id: str, message: FlowMessage) -> list[RouterEffect]:
        """Take a worker's message about this attempt; an outdated one has no effect."""
        if self._assignment.placement is None or self._state in TERMINAL:
            return []
        match message:
            case Reserved():
                return []
            case Refused():
                return self._on_refused(now, worker_id, message)
            case PromptLogprobs() | FirstToken() | Pooled():
                return self._on_computed(now, worker_id, message)
            case Transferred():
                self._transferred = message
                self._assignment.end_transfer()
                return []
            case Failed(code=code, message=text):
                if worker_id not in self._workers_in_use():
                    return []
                if code is ErrorCode.UNAVAILABLE:
                    is_again, why = self.migrations.note_return(worker_id), f"worker {worker_id}: {text}"
                    return self._migrate(now, worker_id, code, why, is_suspect=is_again)
                is_client_error = code is ErrorCode.INVALID_REQUEST
                return self.fail(now, code, text if is_client_error else f"worker {worker_id}: {text}")
        assert_never(message)

    def on_output(self, now: float, worker_id: str, output: SequenceOutput) -> list[RouterEffect]:
        """Pass on new tokens of the decode worker."""
        placement = self._assignment.placement
        if self._state is not FlowState.DECODING or placement is None or worker_id != placement.decode:
            return []
        if not self._has_decoded:
            self._has_decoded = True
            self._assignment.end_prefill()
        if self._stream.outgrows_worker(output):
            effects = self._stream.take(now, output.unfinished())
            why = f"worker {worker_id} holds no more tokens of a sequence"
            return effects + self._migrate(now, worker_id, ErrorCode.UNAVAILABLE, why, is_suspect=False)
        effects = self._stream.take(now, output)
        return effects + (self._finish(now) if self._stream.is_over else [])

    def on_stop(self, now: float, index: int) -> list[RouterEffect]:
        """A stop string ended a sequence."""
        if self._state in TERMINAL or not self._stream.stop(index):
            return []
        if self._stream.is_over:
            return self._finish(now)
        cancel = Cancel(request_id=self.attempt_id, indices=(index,))
        placement = self._assignment.placement
        return [self._send(placement.decode, cancel)] if placement else []

    def on_worker_lost(
        self, now: float, worker_id: str, reason: str, *, has_begun: bool
    ) -> list[RouterEffect]:
        """Migrate if the request depends on that worker; without it, missing blocks are recomputed."""
        if worker_id not in self._workers_in_use():
            return self.place(now)
        is_suspect = has_begun and (self._state is FlowState.DECODING or self._is_prefilled_by(worker_id))
        why = f"worker {worker_id} was lost: {reason}"
        return self._migrate(now, worker_id, ErrorCode.WORKER_LOST, why, is_suspect=is_suspect)

    def on_deadline(self, now: float, why_held: str = "") -> list[RouterEffect]:
        """End or migrate a request that has waited too long; the message names the cause."""
        match self._state:
            case FlowState.WAITING:
                return self.refuse(now, self._gate.time_out(now, why_held or self._why_waiting))
            case FlowState.AWAITING_DECODE if now < self._accepted_s + self._limits.timeout_s:
                return self._place_elsewhere(now, FlowInput.MIGRATE)
            case FlowState.MIGRATING:
                text = f"waited {self.migrations.waited_s(now):.1f} s for a worker: {self._why_waiting}"
                return self.fail(now, self.migrations.code, f"{self.migrations.why}{text}")
            case _:
                text = f"not finished within {self._limits.timeout_s:g} s, last in state {self._state}"
                return self.fail(now, ErrorCode.DEADLINE_EXCEEDED, text)

    def refuse(self, now: float, refusal: Refusal) -> list[RouterEffect]:
        """End a request that waits and cannot be served in time."""
        return self.fail(now, refusal.code, refusal.message, refusal.retry_after_s)

    def fail(
        self, now: float, code: ErrorCode, message: str, retry_after_s: float | None = None
    ) -> list[RouterEffect]:
        """End with an error and cancel at the workers; no effect if the request is over."""
        if self._state in TERMINAL:
            return []
        self._apply(now, FlowInput.FAIL)
        self._record.fail(now, self._stream.num_tokens, code, message)
        terminal = FailRequest(
            request_id=self.spec.request_id, code=code, message=message, retry_after_s=retry_after_s
        )
        return [*self._cancel_at_workers(), terminal]

    # --- placing ---

    def _place(self, now: float) -> list[RouterEffect]:
        assignment, is_migrating = self._assignment, self._state is FlowState.MIGRATING
        assignment.choose_weights(is_bound=self._stream.has_emitted)
        outcome = assignment.choose(now) if is_migrating else self._gate.choose(now, assignment)
        if isinstance(outcome, Refusal):
            return self.refuse(now, outcome)
        if isinstance(outcome, Unplaceable):
            self._why_waiting = outcome.reason
            if outcome.may_pass:
                self.migrations.restart_wait(now)
            is_hopeless = outcome.is_permanent and now == self._accepted_s  # later some may come back
            return self.fail(now, ErrorCode.UNAVAILABLE, outcome.reason) if is_hopeless else []
        self._begin_attempt(now)
        if outcome.is_split:
            self._apply(now, FlowInput.PLACED_SPLIT)
            return [self._send(outcome.prefill, Prefill(spec=self._attempt)), self._reserve(outcome)]
        self._apply(now, FlowInput.RESUMED_LOCAL if self._attempt.resumed else FlowInput.PLACED_LOCAL)
        return [self._send(outcome.decode, Generate(spec=self._attempt))]

    def _begin_attempt(self, now: float) -> None:
        """Begin an attempt at new workers, with the tokens generated so far."""
        if self._first is None:
            self._placed_s = now
        self.migrations.end_wait()
        self._record.place(now)
        self._transferred, self._has_decoded = None, False
        self._entered_s.pop(FlowState.AWAITING_DECODE, None)
        self._stream.begin_attempt(self._assignment.weights)
        record, name = self._record, self.spec.request_id
        self.attempt_id = attempt_name(name, self._limits.router_name, record.num_attempts)
        record.num_attempts += 1
        weights, resumed = self._assignment.weights, self._stream.resumed
        self._attempt = replace(self.spec, request_id=self.attempt_id, resumed=resumed, weights=weights)

    def _on_refused(self, now: float, worker_id: str, refused: Refused) -> list[RouterEffect]:
        if worker_id not in self._workers_in_use():
            return []
        if refused.code is ErrorCode.INVALID_REQUEST:
            return self.fail(now, refused.code, refused.message)
        self._why_waiting = f"worker {worker_id} refused: {refused.message}"
        is_new = self._state in PREFILLING and not (self._first or self.migrations.num_migrations)
        return self._replace_worker(now, worker_id, FlowInput.UNPLACED if is_new else FlowInput.MIGRATE)

    def _migrate(
        self, now: float, worker_id: str, code: ErrorCode, why: str, *, is_suspect: bool
    ) -> list[RouterEffect]:
        """Continue at other workers, within the limits of migration: that worker has lost the request."""
        sizes = self._stream.num_tokens, len(self.spec.prompt_token_ids)
        excuse = self.migrations.add(now, code, why, *sizes, is_suspect=is_suspect)
        if excuse is not None:
            return self.fail(now, code, f"{why}; {excuse}")
        effects = self._replace_worker(now, worker_id, FlowInput.MIGRATE)
        if self._state is FlowState.AWAITING_DECODE:
            self.migrations.begin_wait(now)
        return effects

    def _replace_worker(self, now: float, worker_id: str, flow_input: FlowInput) -> list[RouterEffect]:
        """Find a worker in the place of that one; the prefill worker keeps its part where possible."""
        self._assignment.refuse(worker_id)
        placement = self._assignment.current
        is_decoder = placement.is_split and worker_id == placement.decode
        if is_decoder and self._state is FlowState.SPLIT and self._assignment.reassign_decoder(now):
            self._record.place(now)
            return [self._reserve(self._assignment.current)]
        is_held = placement.prefill in self._fleet and self._transferred is None and not self._has_decoded
        if is_decoder and self._state is FlowState.DECODING and is_held:
            self._apply(now, FlowInput.DECODER_LOST)
            self._record.wait(now)
            return self._reassign(now)
        return self._place_elsewhere(now, flow_input)

    def _place_elsewhere(self, now: float, flow_input: FlowInput) -> list[RouterEffect]:
        effects = self._cancel_at_workers()
        self._apply(now, flow_input)
        self.migrations.begin_wait(now)
        self._record.wait(now)
        self._assignment.resume(replace(self.spec, resumed=self._stream.resumed))
        return effects + self._place(now)

    def _reassign(self, now: float) -> list[RouterEffect]:
        """Find another decode worker for the blocks that the prefill worker holds, or decode them there."""
        if not self._assignment.reassign_decoder(now, is_computed=True):
            return []
        self._apply(now, FlowInput.DECODER_FOUND)
        self.migrations.end_wait()
        self._record.place(now)
        return [self._reserve(self._assignment.current), self._start()]

    def _reserve(self, placement: Placement) -> SendToWorker:
        source = self._fleet.source(placement.prefill)
        return self._send(placement.decode, Reserve(spec=self._attempt, source=source))

    def _start(self) -> SendToWorker:
        firsts = self._stream.first_tokens.items()
        tokens = tuple(FirstTokenOf(index=index, token_id=token_id) for index, token_id in firsts)
        return self._send(
            self._assignment.current.decode, Start(request_id=self.attempt_id, first_tokens=tokens)
        )

    # --- tokens and ends ---

    def _on_computed(
        self, now: float, worker_id: str, message: PromptLogprobs | FirstToken | Pooled
    ) -> list[RouterEffect]:
        """Take what the worker tells that computes the prompt."""
        if not self._is_prefilled_by(worker_id):
            return []
        try:
            match message:
                case PromptLogprobs():
                    return self._stream.take_prompt(message)
                case FirstToken():
                    return self._on_first_token(now, message)
                case Pooled():
                    return self._on_pooled(now, message)
        except ValueError as error:
            return self.fail(now, ErrorCode.INTERNAL, f"worker {worker_id} gave {error}")
        assert_never(message)

    def _on_first_token(self, now: float, message: FirstToken) -> list[RouterEffect]:
        first_outputs = self._stream.collect_first(message)
        if not first_outputs:
            return []
        self._apply(now, FlowInput.FIRST_TOKEN)
        if self._first is None:
            self._record.take_first_token(now, message.num_cached_tokens)
            self._first = message
        self._assignment.end_prefill()
        effects = [effect for output in first_outputs for effect in self._stream.take(now, output)]
        if self._stream.is_over:
            return effects + self._finish(now)
        return [*effects, self._start()] if self._assignment.current.is_split else effects

    def _on_pooled(self, now: float, message: Pooled) -> list[RouterEffect]:
        if (pooled := self._stream.collect_pooled(now, message)) is None:
            return []
        self._apply(now, FlowInput.FIRST_TOKEN)
        self._record.take_first_token(now, message.num_cached_tokens)
        self._first = message.as_first_token
        return self._finish(now, pooled)

    def _finish(self, now: float, pooled: PooledValues | None = None) -> list[RouterEffect]:
        self._apply(now, FlowInput.FINISH)
        self._record.finish(now, self._stream.num_tokens, self._stream.per_token_s)
        placement = self._assignment.placement or self._last_placement
        assert placement is not None, "a finished request was placed"
        times = now, self._accepted_s, self._placed_s
        timings = measure_request(*times, self._stream, placement, self._first, self._transferred)
        return [*self._cancel_at_workers(), finish(self.spec, self._stream, self._first, timings, pooled)]

    # --- workers ---

    def _is_prefilled_by(self, worker_id: str) -> bool:
        """True while that worker computes the prompt."""
        return self._state in PREFILLING and worker_id == self._assignment.current.prefill

    def _workers_in_use(self) -> set[str]:
        """Workers without which the request cannot continue."""
        placement = self._assignment.placement
        if placement is None or self._state in TERMINAL:
            return set()
        workers = {"prefill": placement.prefill, "decode": placement.decode}
        return {workers[half] for half in NEEDED_HALVES.get(self._state, tuple(workers))}

    def _cancel_at_workers(self) -> list[RouterEffect]:
        """Cancel at both workers; a worker without the request ignores it."""
        cancel = Cancel(request_id=self.attempt_id)
        self._last_placement = self._assignment.placement or self._last_placement
        return [self._send(worker_id, cancel) for worker_id in self._assignment.release()]

    def _send(self, worker_id: str, message: RequestCommand) -> SendToWorker:
        return SendToWorker(worker_id=worker_id, message=message)

    def _apply(self, now: float, flow_input: FlowInput) -> None:
        self._state = TRANSITIONS[self._state, flow_input]
        self._entered_s.setdefault(self._state, now)
