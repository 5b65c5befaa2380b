"""One request at the router, from its acceptance to its one terminal effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from baton_core.errors import ErrorCode
from baton_core.fleet import Charge, Fleet
from baton_core.flow_state import TERMINAL, TRANSITIONS, FlowInput, FlowState
from baton_core.placement import Placement, PlacementConfig, Unplaceable, WorkerView, pick_decoder, place
from baton_core.router_events import (
    FailRequest,
    FinishRequest,
    RequestTimings,
    RouterEffect,
    SendToWorker,
)
from baton_core.router_messages import (
    Cancel,
    Failed,
    FirstToken,
    FirstTokenOf,
    Generate,
    Prefill,
    Refused,
    RequestSpec,
    Reserve,
    Reserved,
    SequenceOutput,
    Start,
    ToWorker,
    Transferred,
)
from baton_core.token_stream import TokenStream
from baton_core.worker_info import ModelIdentity

ATTEMPT_MARK: Final = "\t"
"""Between a request's name and what its router adds for the workers; no client's name contains it."""


def name_at_client(attempt_id: str) -> str:
    """The client's name of a request, from the name that its workers use."""
    return attempt_id.partition(ATTEMPT_MARK)[0]


FlowMessage = Reserved | Refused | FirstToken | Transferred | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """How long a request may take, how it is placed, and whose it is."""

    router_name: str = ""
    """Tells the requests of several routers apart at their workers; empty where there is only one."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    timeout_s: float = 600.0
    queue_s: float = 30.0
    """How long it waits at the router for a worker with room."""
    homeless_s: float = 15.0
    """How long it looks for another decode worker; the prefill worker holds the blocks as long."""


class RequestFlow:
    """Admit, place, reserve, prefill, start, cancel. Methods return effects.

    `attempt_id` names the request at the workers; it changes when the request is placed anew, so a late
    message of an earlier placement finds nobody.
    """

    def __init__(self, now: float, spec: RequestSpec, *, limits: FlowLimits, fleet: Fleet) -> None:
        self.spec = spec
        self.attempt_id = spec.request_id
        self._fleet = fleet
        self._limits = limits
        self._state = FlowState.WAITING
        self._entered_s = {FlowState.WAITING: now}
        """When it first entered each state: a wait counts from there, however often it is refused."""
        self._accepted_s = now
        self._placed_s = now
        self._num_attempts = 0
        self._placement: Placement | None = None
        self._refused_by: frozenset[str] = frozenset()
        self._why_waiting = ""
        self._charges: list[Charge] = []
        self._hashed_for: ModelIdentity | None = None
        self._hashes: list[bytes] = []
        self._stream = TokenStream(now, spec)
        self._first: FirstToken | None = None
        self._transferred: Transferred | None = None

    @property
    def state(self) -> FlowState:
        return self._state

    @property
    def deadline(self) -> float:
        """When `on_deadline` is due."""
        end = self._accepted_s + self._limits.timeout_s
        match self._state:
            case FlowState.WAITING:
                return min(end, self._entered_s[FlowState.WAITING] + self._limits.queue_s)
            case FlowState.HOMELESS:
                return min(end, self._entered_s[FlowState.HOMELESS] + self._limits.homeless_s)
            case _:
                return end

    # --- inputs ---

    def place(self, now: float) -> list[RouterEffect]:
        """Look for workers, at the start and whenever some may have room again."""
        self._refused_by = frozenset()
        match self._state:
            case FlowState.WAITING:
                return self._place(now)
            case FlowState.HOMELESS:
                return self._rehome(now)
            case _:
                return []

    def on_message(self, now: float, worker_id: str, message: FlowMessage) -> list[RouterEffect]:
        """Take what a worker says of this attempt. What no longer matters changes nothing."""
        if self._placement is None or self._state in TERMINAL:
            return []
        match message:
            case Reserved():
                return []
            case Refused():
                return self._on_refused(now, worker_id, message)
            case FirstToken():
                return self._on_first_token(now, worker_id, message)
            case Transferred():
                self._transferred = message
                self._take_back(lambda charge: charge.num_blocks > 0)
                return []
            case Failed(code=code, message=text):
                is_concerned = worker_id in self._workers_in_use()
                return self.fail(now, code, f"worker {worker_id}: {text}") if is_concerned else []
        assert_never(message)

    def on_output(self, now: float, worker_id: str, output: SequenceOutput) -> list[RouterEffect]:
        """Pass on new tokens of the decode worker."""
        is_decoder = self._placement is not None and worker_id == self._placement.decode
        if self._state is not FlowState.DECODING or not is_decoder:
            return []
        effects = self._stream.take(now, output)
        return effects + (self._finish(now) if self._stream.is_over else [])

    def on_stop(self, now: float, index: int) -> list[RouterEffect]:
        """A stop string ended a sequence."""
        if self._state in TERMINAL or not self._stream.stop(index):
            return []
        if self._stream.is_over:
            return self._finish(now)
        assert self._placement is not None, "a sequence has tokens, so it was placed"
        return [self._send(self._placement.decode, Cancel(request_id=self.attempt_id, indices=(index,)))]

    def on_worker_lost(self, now: float, worker_id: str, reason: str) -> list[RouterEffect]:
        """Fail if the request depends on that worker. Blocks not pulled yet are recomputed without it."""
        if worker_id in self._workers_in_use():
            return self.fail(now, ErrorCode.WORKER_LOST, f"worker {worker_id} was lost: {reason}")
        return self.place(now)

    def on_deadline(self, now: float) -> list[RouterEffect]:
        """End what waited too long; the message names what it waited for."""
        waited_s = now - self._entered_s[self._state]
        match self._state:
            case FlowState.WAITING | FlowState.HOMELESS:
                text = f"waited {waited_s:.1f} s for a worker: {self._why_waiting}"
                return self.fail(now, ErrorCode.OVERLOADED, text)
            case _:
                text = f"not finished within {self._limits.timeout_s:g} s, last in state {self._state}"
                return self.fail(now, ErrorCode.DEADLINE_EXCEEDED, text)

    def fail(self, now: float, code: ErrorCode, message: str) -> list[RouterEffect]:
        """End with an error and stop the work everywhere; nothing if it is over already."""
        if self._state in TERMINAL:
            return []
        self._apply(now, FlowInput.FAIL)
        terminal = FailRequest(request_id=self.spec.request_id, code=code, message=message)
        return [*self._leave_workers(), terminal]

    # --- placing ---

    def _place(self, now: float) -> list[RouterEffect]:
        views = self._views()
        outcome = place(len(self.spec.prompt_token_ids), views, self._limits.placement, self._refused_by)
        if isinstance(outcome, Unplaceable):
            self._why_waiting = outcome.reason
            return self.fail(now, ErrorCode.UNAVAILABLE, outcome.reason) if outcome.is_permanent else []
        self._placement = outcome
        self._placed_s = now
        self.attempt_id = self._name_attempt()
        self._num_attempts += 1
        self._charge(Charge(outcome.prefill, num_tokens=len(self.spec.prompt_token_ids)))
        self._charge_decoder(outcome)
        if not outcome.is_split:
            self._apply(now, FlowInput.PLACED_LOCAL)
            return [self._send(outcome.decode, Generate(spec=self._attempt()))]
        self._apply(now, FlowInput.PLACED_SPLIT)
        return [
            self._send(outcome.prefill, Prefill(spec=self._attempt())),
            self._reserve(outcome),
        ]

    def _on_refused(self, now: float, worker_id: str, refused: Refused) -> list[RouterEffect]:
        if worker_id not in self._workers_in_use():
            return []
        if refused.code is ErrorCode.INVALID_REQUEST:
            return self.fail(now, refused.code, refused.message)
        assert self._placement is not None, "a worker can only refuse what it was given"
        self._take_back(lambda charge: charge.worker_id == worker_id)
        self._refused_by |= {worker_id}
        self._why_waiting = f"worker {worker_id} refused: {refused.message}"
        if self._state is FlowState.DECODING:
            self._apply(now, FlowInput.DECODER_REFUSED)
            return self._rehome(now)
        if self._state is FlowState.SPLIT and worker_id == self._placement.decode and self._move_decoder():
            return [self._reserve(self._placement)]
        effects = self._leave_workers()
        self._placement = None
        self._apply(now, FlowInput.UNPLACED)
        return effects + self._place(now)

    def _move_decoder(self) -> bool:
        """Choose another decode worker for the same prefill worker, if one is left."""
        assert self._placement is not None, "only a placed request moves"
        excluded = self._refused_by | {self._placement.prefill}
        decoder = pick_decoder(self._views(), excluded, can_reserve=True)
        if decoder is None:
            return False
        self._placement = replace(self._placement, decode=decoder.worker_id)
        self._charge_decoder(self._placement)
        return True

    def _rehome(self, now: float) -> list[RouterEffect]:
        """Give the blocks that the prefill worker still holds to another decode worker."""
        if not self._move_decoder():
            return []
        assert self._placement is not None, "it has just been moved"
        self._apply(now, FlowInput.DECODER_FOUND)
        return [self._reserve(self._placement), self._start()]

    def _views(self) -> list[WorkerView]:
        """The snapshot to decide on. The prompt is hashed once for each identity of the fleet."""
        identity = self._fleet.identity
        if identity is not None and identity != self._hashed_for:
            self._hashed_for, self._hashes = identity, self._fleet.prompt_hashes(self.spec)
        return self._fleet.views(len(self.spec.prompt_token_ids), self._hashes)

    def _name_attempt(self) -> str:
        """Another name for each placement, and for each router that workers serve."""
        number = str(self._num_attempts) if self._num_attempts else ""
        mark = ".".join(part for part in (self._limits.router_name, number) if part)
        return f"{self.spec.request_id}{ATTEMPT_MARK}{mark}" if mark else self.spec.request_id

    def _attempt(self) -> RequestSpec:
        return replace(self.spec, request_id=self.attempt_id)

    def _reserve(self, placement: Placement) -> SendToWorker:
        source = self._fleet.source(placement.prefill)
        return self._send(placement.decode, Reserve(spec=self._attempt(), source=source))

    def _start(self) -> SendToWorker:
        assert self._placement is not None, "only a placed request starts"
        tokens = tuple(
            FirstTokenOf(index=index, token_id=token_id)
            for index, token_id in self._stream.first_tokens.items()
        )
        return self._send(self._placement.decode, Start(request_id=self.attempt_id, first_tokens=tokens))

    # --- tokens and ends ---

    def _on_first_token(self, now: float, worker_id: str, message: FirstToken) -> list[RouterEffect]:
        if self._state not in (FlowState.LOCAL, FlowState.SPLIT):
            return []
        assert self._placement is not None, "its state says so"
        if worker_id != self._placement.prefill:
            return []
        if {output.index for output in message.outputs} != set(range(self.spec.params.n)):
            text = f"worker {worker_id} gave {len(message.outputs)} first tokens for {self.spec.params.n}"
            return self.fail(now, ErrorCode.INTERNAL, text)
        self._apply(now, FlowInput.FIRST_TOKEN)
        self._first = message
        self._take_back(lambda charge: charge.num_tokens > 0)
        effects = [effect for output in message.outputs for effect in self._stream.take(now, output)]
        if self._stream.is_over:
            return effects + self._finish(now)
        return [*effects, self._start()] if self._placement.is_split else effects

    def _finish(self, now: float) -> list[RouterEffect]:
        self._apply(now, FlowInput.FINISH)
        terminal = FinishRequest(
            request_id=self.spec.request_id,
            num_prompt_tokens=len(self.spec.prompt_token_ids),
            num_output_tokens=self._stream.num_tokens,
            num_cached_tokens=self._first.num_cached_tokens if self._first else 0,
            timings=self._timings(now),
        )
        return [*self._leave_workers(), terminal]

    def _timings(self, now: float) -> RequestTimings:
        first, moved, placement = self._first, self._transferred, self._placement
        assert first is not None, "a finished request has its first token"
        assert placement is not None, "a finished request was placed"
        is_decoded = not placement.is_split or moved is not None
        return RequestTimings(
            queue_s=self._placed_s - self._accepted_s + first.queue_s,
            prefill_s=first.prefill_s,
            transfer_s=moved.transfer_s if moved else 0.0,
            first_token_s=self._entered_s[FlowState.DECODING] - self._accepted_s,
            total_s=now - self._accepted_s,
            per_token_s=self._stream.per_token_s,
            transferred_bytes=moved.num_bytes if moved else 0,
            prefill_worker=placement.prefill,
            decode_worker=placement.decode if is_decoded else "",
        )

    # --- workers ---

    def _workers_in_use(self) -> set[str]:
        """Workers without which the request cannot go on."""
        if self._placement is None or self._state in TERMINAL:
            return set()
        match self._state:
            case FlowState.DECODING:
                return {self._placement.decode}
            case FlowState.HOMELESS:
                return {self._placement.prefill}
            case _:
                return {self._placement.prefill, self._placement.decode}

    def _leave_workers(self) -> list[RouterEffect]:
        """Cancel at both workers, which ignore it if they have nothing left of the request."""
        if self._placement is None:
            return []
        self._take_back(lambda charge: True)
        names = dict.fromkeys((self._placement.decode, self._placement.prefill))
        return [self._send(worker_id, Cancel(request_id=self.attempt_id)) for worker_id in names]

    def _charge_decoder(self, placement: Placement) -> None:
        self._charge(Charge(placement.decode, num_sequences=self.spec.params.n))
        if placement.is_split:
            self._charge(
                Charge(placement.decode, num_blocks=self._fleet.num_blocks(len(self.spec.prompt_token_ids)))
            )

    def _charge(self, charge: Charge) -> None:
        self._fleet.give(charge)
        self._charges.append(charge)

    def _take_back(self, is_over: Callable[[Charge], bool]) -> None:
        for charge in [charge for charge in self._charges if is_over(charge)]:
            self._charges.remove(charge)
            self._fleet.give(charge, sign=-1)

    def _send(self, worker_id: str, message: ToWorker) -> SendToWorker:
        return SendToWorker(worker_id=worker_id, message=message)

    def _apply(self, now: float, what: FlowInput) -> None:
        self._state = TRANSITIONS[self._state, what]
        self._entered_s.setdefault(self._state, now)
