"""The brain of a worker: takes requests, plans steps, holds and imports blocks.

Owned by the loop thread, which feeds it events and executes its effects; the engine thread sees only the
plans. A prefill worker and a decode worker run the same core.
"""

from __future__ import annotations

from typing import assert_never

from baton_core.blocks.block_pool import BlockPool
from baton_core.blocks.imports import Imports
from baton_core.blocks.lease_table import LeaseTable
from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, OverloadedError
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.control_messages import Control
from baton_core.sessions.router_messages import (
    Cancel,
    Failed,
    Generate,
    Prefill,
    Refused,
    RequestSpec,
    Reserve,
    Reserved,
    SequenceOutput,
    Start,
    TokenBatch,
    ToWorker,
)
from baton_core.sessions.worker_info import WorkerLoad
from baton_core.worker.cache_reports import CacheReports
from baton_core.worker.controls import Controls, OpenWork
from baton_core.worker.departure import Departure
from baton_core.worker.learned_rates import LearnedRates
from baton_core.worker.outputs import Outputs
from baton_core.worker.phase_reports import PhaseReports
from baton_core.worker.preparations import Preparations
from baton_core.worker.scheduler import Scheduler
from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.standing import LEAVING
from baton_core.worker.step_health import StepHealth
from baton_core.worker.step_plan import StepPlan, StepResult
from baton_core.worker.worker_config import WorkerConfig
from baton_core.worker.worker_events import (
    ControlDone,
    HolderSaid,
    Leave,
    Prepared,
    PullAborted,
    PullDone,
    PullerSaid,
    RouterJoined,
    RouterLost,
    RouterSaid,
    Sealed,
    SealFailed,
    SendToRouter,
    StepDone,
    StepFailed,
    WorkerEffect,
    WorkerEvent,
)
from baton_core.worker.worker_load import count_deferred, measure_load
from baton_core.worker.worker_request import WorkerRequest, new_request


class WorkerCore:
    """Events in, effects out; `schedule` plans steps."""

    def __init__(self, config: WorkerConfig) -> None:
        max_chunk = config.scheduler.max_num_batched_tokens
        needed = config.paging.max_blocks(config.max_model_len, max_chunk)
        assert needed <= config.num_blocks, "max_model_len exceeds the pool"
        self.config = config
        self.pool = BlockPool(config.num_blocks, enable_prefix_caching=config.enable_prefix_caching)
        self.scheduler = Scheduler(self.pool, config.paging, config.scheduler)
        self.leases = LeaseTable(
            self.pool, epoch=config.epoch, needs_seal=config.is_verified_by_checksum, timings=config.hold
        )
        self.rates = LearnedRates()
        self.imports = Imports(self.pool, self.rates, config)
        self.outputs = Outputs(config)
        self.preparations = Preparations(config.prepare_within_s)
        self.controls = Controls(self.pool)
        self.health = StepHealth(self.controls.standing, pauses=config.pauses_when_failing)
        self.departure = Departure(self.controls.standing)
        self._cache_reports = CacheReports(self.pool.cache, config)
        self._phases = PhaseReports(config.kv_spec)
        self._requests: dict[str, WorkerRequest] = {}

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def num_deferred(self) -> int:
        return count_deferred(self._requests.values(), self.preparations)

    @property
    def open_work(self) -> OpenWork:
        """What would be lost if it ended now."""
        return OpenWork(
            num_requests=len(self._requests),
            num_offers=self.leases.num_open,
            num_transfers=self.imports.num_transfers,
        )

    def on_event(self, now: float, event: WorkerEvent) -> list[WorkerEffect]:
        """Take one event; returns what the shell has to do, in order."""
        effects = self._dispatch(now, event) + self._start_ready(now)
        self.leases.hurry(now, is_hurried=self.controls.standing.is_draining)
        if not self.scheduler.is_step_in_flight:
            effects += self.controls.begin(self.open_work)
        return effects + self._cache_reports.tell() + self._phases.tell(now)

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step; None where none may be, and when none is needed.

        While one is in flight, that is one that can be planned without its tokens, if the config says so.
        """
        if self.controls.holds_steps:
            return None
        if not self.scheduler.is_step_in_flight:
            return self.scheduler.schedule(now)
        if not self.config.plans_ahead:
            return None
        return self.scheduler.schedule_ahead(now, self.outputs.ends_with_next)

    def next_deadline(self) -> float | None:
        """When `on_deadline` is due."""
        parts = (self.leases, self.imports, self.preparations, self.controls, self.departure, self.health)
        deadlines = [part.next_deadline() for part in parts]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_deadline(self, now: float) -> list[WorkerEffect]:
        """Act on every wait that is over."""
        self.health.on_deadline(now)
        effects = self.leases.expire(now) + self.imports.on_deadline(now) + self._give_back(now)
        for request_id, text in self.preparations.overdue(now):
            effects += self._fail(now, self._requests[request_id], ErrorCode.DEADLINE_EXCEEDED, text)
        return effects + self._start_ready(now) + self.controls.expire(now) + self._phases.tell(now)

    def load(self, now: float) -> WorkerLoad:
        """What heartbeats tell the routers."""
        return measure_load(now, self.scheduler, self.pool, self.controls, self.rates, self.num_deferred)

    def check_invariants(self) -> None:
        """Raise AssertionError when parts disagree about a block or a request."""
        for part in (self.pool, self.scheduler, self.leases, self.imports, self.controls):
            part.check_invariants()
        self.preparations.check_invariants(self._requests)
        self._phases.check_invariants(self._requests.keys())
        if not self.open_work and not self.scheduler.is_step_in_flight:
            assert self.pool.num_available == self.pool.num_blocks, "idle, but blocks are in use"

    def _dispatch(self, now: float, event: WorkerEvent) -> list[WorkerEffect]:
        match event:
            case Leave(within_s=within_s):
                self.departure.begin(now, within_s)
                return self._give_back(now)
            case RouterSaid(router_id=router_id, message=message):
                return self._on_command(now, router_id, message)
            case RouterJoined(router_id=router_id, has_locality=has_locality):
                return self._cache_reports.on_joined(router_id, has_locality=has_locality)
            case RouterLost(router_id=router_id):
                self._cache_reports.on_lost(router_id)
                lost = [r for r in self._requests.values() if r.router_id == router_id]
                return [effect for request in lost for effect in self._cancel(now, request)]
            case PullerSaid() | Sealed() | SealFailed():
                return self.leases.on_event(now, event)
            case HolderSaid(message=message):
                request_id = self.imports.request_of(message.transfer_id)
                return self._phases.note_copies(now, request_id, self.imports.on_message(now, message))
            case PullDone() | PullAborted():
                self._phases.end_copy(now, event)
                return self.imports.on_event(now, event)
            case Prepared():
                return self._on_prepared(now, event)
            case ControlDone():
                return self.controls.on_done(event)
            case StepDone(result=result):
                return self._on_step(now, result)
            case StepFailed(message=message):
                return self._on_step_failed(now, message)
        assert_never(event)

    def _on_command(self, now: float, router_id: str, command: ToWorker) -> list[WorkerEffect]:
        match command:
            case Generate(spec=spec) | Prefill(spec=spec) | Reserve(spec=spec):
                try:
                    self._check(spec)
                    return self._accept(now, router_id, command)
                except BatonError as error:
                    refused = Refused(request_id=spec.request_id, code=error.code, message=str(error))
                    return [SendToRouter(router_id=router_id, message=refused)]
            case Start(request_id=request_id, first_tokens=first_tokens):
                if (reservation := self.imports.get(request_id)) is not None:
                    reservation.first_tokens = {first.index: first.token_id for first in first_tokens}
                return []
            case Cancel(request_id=request_id, indices=indices):
                request = self._requests.get(request_id)
                if request is None:
                    return self.leases.withdraw(request_id, "the request was cancelled")
                return self._cancel(now, request, indices)
            case Control():
                return self.controls.take(now, router_id, command, self.open_work)
        assert_never(command)

    def _check(self, spec: RequestSpec) -> None:
        self.config.check(spec)
        self.controls.require_taking()
        if spec.request_id in self._requests:
            raise InvalidRequestError("request_id", spec.request_id, "a name that no running request has")
        if len(self._requests) >= self.config.max_num_requests:
            raise OverloadedError(f"this worker has {len(self._requests)} requests, its maximum")

    def _accept(
        self, now: float, router_id: str, command: Generate | Prefill | Reserve
    ) -> list[WorkerEffect]:
        spec = command.spec
        request = new_request(now, router_id, command, config=self.config, outputs=self.outputs)
        seq = request.leader
        effects: list[WorkerEffect] = []
        if isinstance(command, Reserve):
            pulls = self.imports.reserve(now, seq, command.source, self.leases.held(spec.request_id))
            if pulls is None:
                raise OverloadedError(f"{self.pool.num_available} of {self.pool.num_blocks} blocks are free")
            reserved = Reserved(request_id=spec.request_id, num_cached_tokens=seq.num_cached_tokens or 0)
            effects = pulls + self.leases.withdraw(spec.request_id, "it is decoded where it was computed")
            effects.append(SendToRouter(router_id=router_id, message=reserved))
        else:
            if spec.params.structured_outputs is None:
                self.scheduler.add(seq)
            if request.is_prefill:
                effects = self.leases.open(now, spec.request_id, router_id)
        if (form := spec.params.structured_outputs) is not None:
            effects.append(self.preparations.begin(now, spec.request_id, form))
        self._requests[spec.request_id] = request
        self._phases.open(now, router_id, spec, self.imports.get(spec.request_id))
        return effects

    def _on_prepared(self, now: float, prepared: Prepared) -> list[WorkerEffect]:
        """Let a request begin, or end it; a reservation begins when it has its blocks, too."""
        request_id = self.preparations.end(prepared.preparation_id)
        if request_id is None:
            return []
        request = self._requests[request_id]
        if prepared.error:
            return self._fail(now, request, prepared.code, prepared.error)
        if self.imports.get(request_id) is None:
            self.scheduler.add(request.leader)
        return []

    def _start_ready(self, now: float) -> list[WorkerEffect]:
        """Let the reservations join the batch that have first tokens, blocks, and what they draw by."""
        effects: list[WorkerEffect] = []
        for request_id, tokens in self.imports.ready():
            if request_id in self.preparations:
                continue
            request = self._requests[request_id]
            transferred = self.imports.start(now, request_id)
            effects.append(SendToRouter(router_id=request.router_id, message=transferred))
            self._decode(now, request, tokens)
        return effects

    def _decode(self, now: float, request: WorkerRequest, tokens: dict[int, int]) -> None:
        """Go on from the prompt with the sequences that have `tokens`; all share the prompt's blocks."""
        leader = request.leader
        leader.num_samples = 1
        if tokens:
            self._phases.make_ready(now, leader)
        for index in tokens:
            if index != leader.seq_id.index:
                request.sequences[index] = leader.fork(index)
                self.pool.share(leader.tables.held())
        for index, token_id in tokens.items():
            seq = request.sequences[index]
            seq.append(token_id)
            if seq.state is SequenceState.WAITING:
                self.scheduler.add(seq)
        if leader.seq_id.index not in tokens:
            self._end(now, request, leader)

    # --- steps ---

    def _on_step(self, now: float, result: StepResult) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        batches: dict[str, list[SequenceOutput]] = {}
        plan, started_s = self.scheduler.flights.first.plan, self.scheduler.flights.first.started_s
        self.rates.end_step(plan, now - started_s)
        alive = self.scheduler.complete(now, result)
        self.health.end_step(now, result, [number for _, number in alive])
        for seq, number in alive:
            request, failure = self._requests.get(seq.seq_id.request_id), result.failures.get(number)
            if number in result.broken:
                self.pool.forget(seq.tables.held())
            if request is not None and failure is not None:
                effects += self._fail(now, request, ErrorCode.INTERNAL, failure)
            if request is None or failure is not None:
                continue
            self._phases.end_slice(started_s, now, plan.slices[number], seq.num_given_tokens)
            sampled, logprobs = result.sampled[number], result.logprobs.get(number, ())
            if (entries := result.prompt_logprobs.get(number)) is not None:
                told = self.outputs.prompt_logprobs(seq, entries)
                effects += [SendToRouter(router_id=request.router_id, message=message) for message in told]
            if request.is_prefill:
                blocks = seq.prompt_blocks(is_complete=bool(sampled))
                effects += self.leases.add_blocks(seq.seq_id.request_id, blocks)
            if sampled and not request.has_first_token:
                effects.append(self._on_first_token(now, request, seq, sampled, logprobs))
            elif sampled:
                if seq.num_tokens == seq.num_given_tokens:
                    self._go_on(now, request, seq)
                output = self.outputs.next_token(seq, sampled[0], logprobs)
                batches.setdefault(request.router_id, []).append(output)
                if output.finish_reason is not None:
                    self._end(now, request, seq)
        for router_id, outputs in batches.items():
            effects.append(SendToRouter(router_id=router_id, message=TokenBatch(outputs=tuple(outputs))))
        return effects

    def _go_on(self, now: float, request: WorkerRequest, seq: Sequence) -> None:
        """A sequence that was resumed draws its first token here; the others find its prompt in the cache."""
        self._phases.make_ready(now, seq)
        for follower in request.take_followers():
            self.scheduler.add(follower)

    def _on_first_token(
        self,
        now: float,
        request: WorkerRequest,
        leader: Sequence,
        sampled: tuple[int, ...],
        logprobs: tuple[PositionLogprobs, ...],
    ) -> SendToRouter:
        request.has_first_token = True
        message = self.outputs.first_token(now, leader, sampled, logprobs)
        if request.is_prefill:
            self.leases.complete(now, request.spec.request_id)
            self._end(now, request, leader)
        else:
            alive = {one.index: one.token_ids[0] for one in message.outputs if not one.finish_reason}
            self._decode(now, request, alive)
        return SendToRouter(router_id=request.router_id, message=message)

    def _on_step_failed(self, now: float, message: str) -> list[WorkerEffect]:
        failed: dict[str, WorkerRequest] = {}
        for seq in self.scheduler.fail_step(now):
            request = self._requests[seq.seq_id.request_id]
            self._phases.end_sequence(request.sequences.pop(seq.seq_id.index))
            failed[seq.seq_id.request_id] = request
        if failed:
            self.health.fail_step(now, message)
        code = ErrorCode.INTERNAL
        return [effect for request in failed.values() for effect in self._fail(now, request, code, message)]

    def _give_back(self, now: float) -> list[WorkerEffect]:
        """Let routers go on elsewhere with what is not to go on here."""
        leaving = self.departure.given_back(now, self._requests.values())
        return [effect for one in leaving for effect in self._fail(now, one, ErrorCode.UNAVAILABLE, LEAVING)]

    def _fail(self, now: float, request: WorkerRequest, code: ErrorCode, text: str) -> list[WorkerEffect]:
        failed = Failed(request_id=request.spec.request_id, code=code, message=text)
        return [*self._cancel(now, request), SendToRouter(router_id=request.router_id, message=failed)]

    def _cancel(
        self, now: float, request: WorkerRequest, indices: tuple[int, ...] = ()
    ) -> list[WorkerEffect]:
        """End the sequences named, or all; a reserved prompt and a prefill end only as a whole."""
        request_id = request.spec.request_id
        if (reservation := self.imports.get(request_id)) is not None:
            tokens = reservation.first_tokens or {}
            for index in indices:
                tokens.pop(index, None)
            if indices and tokens:
                return []
            self._forget(request_id)
            return self.imports.cancel(now, request_id)
        for index in indices or tuple(request.sequences):
            if (seq := request.sequences.get(index)) is not None:
                self._end(now, request, seq)
        if not request.sequences or not indices:
            self._forget(request_id)
        return self.leases.withdraw(request_id, "the request was cancelled") if request.is_prefill else []

    def _end(self, now: float, request: WorkerRequest, seq: Sequence) -> None:
        self.scheduler.remove(now, seq)
        self._phases.end_sequence(seq)
        del request.sequences[seq.seq_id.index]
        for follower in request.take_followers():
            self.scheduler.add(follower)
        if not request.sequences:
            self._forget(request.spec.request_id)

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._phases.close(request_id)
        self.preparations.drop(request_id)
