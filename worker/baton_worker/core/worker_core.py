"""The brain of a worker: takes requests, plans steps, holds blocks and pulls them.

Owned by the loop thread, which feeds it events and executes its effects; the engine thread sees only the
plans. A prefill worker and a decode worker run the same core.
"""

from __future__ import annotations

from typing import assert_never

from baton_core.errors import BatonError, ErrorCode
from baton_core.sessions.control_messages import Control
from baton_core.sessions.router_messages import (
    Cancel,
    Failed,
    FirstToken,
    Generate,
    Prefill,
    Refused,
    Reserve,
    Reserved,
    SequenceOutput,
    Start,
    TokenBatch,
    ToWorker,
)
from baton_core.sessions.worker_info import WorkerLoad
from baton_core.worker.learned_rates import LearnedRates
from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.step_plan import StepPlan, StepResult
from baton_core.worker.worker_events import (
    AdapterLoaded,
    ChecksumsComputed,
    ChecksumsFailed,
    ControlDone,
    Drain,
    FromConsumer,
    FromProducer,
    FromRouter,
    GrammarCompiled,
    Leave,
    PullAborted,
    PullDone,
    RouterJoined,
    RouterLost,
    SendToRouter,
    StepDone,
    StepFailed,
    WorkerEffect,
    WorkerEvent,
)
from baton_worker.core.cache_reports import CacheReports
from baton_worker.core.controls import Controls, OpenWork
from baton_worker.core.graceful_shutdown import GracefulShutdown
from baton_worker.core.outputs import Outputs
from baton_worker.core.phase_reports import PhaseReports
from baton_worker.core.step_health import StepHealth
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.core.worker_load import count_deferred, measure_load
from baton_worker.core.worker_request import (
    Preparations,
    WorkerRequest,
    check_open,
    check_request,
    new_request,
)
from baton_worker.core.worker_status import LEAVING


class WorkerCore:
    """Events in, effects out; `schedule` plans steps."""

    def __init__(self, config: WorkerConfig) -> None:
        needed = config.paging.max_blocks(config.max_model_len, config.scheduler.max_num_batched_tokens)
        assert needed <= config.num_blocks, "max_model_len exceeds the pool"
        self.config = config
        self.pool = config.make_pool()
        self.scheduler = config.make_scheduler(self.pool)
        self.leases = config.make_lease_table(self.pool)
        self.rates = LearnedRates()
        self.kv_pulls = config.make_kv_pulls(self.pool, self.rates)
        self.outputs = Outputs(config)
        self.preparations = Preparations(config.compile_within_s, config.max_cpu_loras)
        self.controls = Controls(self.pool, self.preparations.adapters, self.scheduler)
        self.controls.weights = config.identity.weights
        self.health = StepHealth(self.controls.status, pauses=config.pauses_when_failing)
        self.shutdown = GracefulShutdown(self.controls.status)
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
        """The work that would be lost if the worker ended now."""
        offers, transfers = self.leases.num_open, self.kv_pulls.num_transfers
        return OpenWork(num_requests=len(self._requests), num_offers=offers, num_transfers=transfers)

    def on_event(self, now: float, event: WorkerEvent) -> list[WorkerEffect]:
        """Take one event; returns what the shell has to do, in order."""
        self.pool.now = now
        return self._dispatch(now, event) + self._settle(now)

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step; None where none may be, and when none is needed.

        While as many are in flight as the model has stages, or nobody is left for another one, that is one
        that can be planned without the tokens of the one in flight, if the config says so.
        """
        self.pool.now = now
        if self.controls.holds_steps:
            return None
        plan = None if self.scheduler.is_full else self.scheduler.schedule(now)
        if plan is None and self.config.plans_ahead:
            return self.scheduler.schedule_ahead(now, self.outputs.ends_with_next)
        return plan

    def next_deadline(self) -> float | None:
        """The time when `on_deadline` is due."""
        parts = (self.leases, self.kv_pulls, self.preparations, self.controls, self.shutdown, self.health)
        deadlines = [part.next_deadline() for part in parts]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_deadline(self, now: float) -> list[WorkerEffect]:
        """Act on every wait that is over."""
        self.pool.now = now
        self.health.on_deadline(now)
        effects = self.leases.expire(now) + self.kv_pulls.on_deadline(now) + self._return_requests(now)
        for request_id, text in self.preparations.overdue(now):
            effects += self._fail(now, self._requests[request_id], ErrorCode.DEADLINE_EXCEEDED, text)
        effects += self.controls.expire(now, self.open_work)
        return effects + self._settle(now)

    def load(self, now: float) -> WorkerLoad:
        """The load that heartbeats report to the routers."""
        parts = self.scheduler, self.pool, self.controls, self.rates
        return measure_load(now, *parts, self.num_deferred, self.preparations.adapters)

    def check_invariants(self) -> None:
        """Raise AssertionError when parts disagree about a block or a request."""
        for part in (self.pool, self.scheduler, self.leases, self.kv_pulls, self.controls):
            part.check_invariants()
        self.preparations.check_invariants(self._requests)
        self._phases.check_invariants(self._requests.keys())
        if not self.open_work and not self.scheduler.in_flight:
            assert self.pool.num_available == self.pool.num_blocks, "idle, but blocks are in use"

    def _settle(self, now: float) -> list[WorkerEffect]:
        """Begin what an event or a deadline has made possible, and report."""
        effects = self._start_ready(now)
        self.leases.set_draining(now, is_draining=self.controls.status.is_draining)
        if not self.scheduler.in_flight:
            effects += self.controls.begin(self.open_work)
        loads, ready = self.preparations.load_adapters(now, self.scheduler.in_flight.sequences)
        for request_id in ready:
            self._add_when_ready(request_id)
        return effects + loads + self._cache_reports.publish() + self._phases.publish(now)

    def _dispatch(self, now: float, event: WorkerEvent) -> list[WorkerEffect]:
        match event:
            case Leave() | Drain():
                self.shutdown.on_event(now, event)
                return self._return_requests(now)
            case FromRouter(router_id=router_id, message=message):
                return self._on_command(now, router_id, message)
            case RouterJoined(router_id=router_id, has_locality=has_locality):
                return self._cache_reports.on_joined(router_id, has_locality=has_locality)
            case RouterLost(router_id=router_id):
                self._cache_reports.on_lost(router_id)
                lost = [one for one in self._requests.values() if one.router_id == router_id]
                return [effect for one in lost for effect in self._cancel(now, one)]
            case FromConsumer() | ChecksumsComputed() | ChecksumsFailed():
                return self.leases.on_event(now, event)
            case FromProducer(message=message):
                request_id = self.kv_pulls.request_of(message.transfer_id)
                return self._phases.note_copies(now, request_id, self.kv_pulls.on_message(now, message))
            case PullDone() | PullAborted():
                self._phases.end_copy(now, event)
                return self.kv_pulls.on_event(now, event)
            case GrammarCompiled() | AdapterLoaded():
                return self._on_prepared(now, event)
            case ControlDone():
                effects = self.controls.on_done(event)
                self.config = self.config.with_weights(self.controls.weights)
                return effects
            case StepDone(result=result):
                return self._on_step(now, result)
            case StepFailed(message=message):
                return self._on_step_failed(now, message)
        assert_never(event)

    def _on_command(self, now: float, router_id: str, command: ToWorker) -> list[WorkerEffect]:
        match command:
            case Generate(spec=spec) | Prefill(spec=spec) | Reserve(spec=spec):
                try:
                    check_request(spec, self.config)
                    has_begun = isinstance(command, Reserve) or bool(spec.resumed)
                    self.preparations.adapters.require_place(None if has_begun else spec.adapter)
                    self.controls.require_accepting(spec.weights, has_begun)
                    check_open(spec.request_id, self._requests, self.config.max_num_requests)
                    return self._accept(now, router_id, command)
                except BatonError as error:
                    refused = Refused(request_id=spec.request_id, code=error.code, message=str(error))
                    return [SendToRouter(router_id=router_id, message=refused)]
            case Start(request_id=request_id, first_tokens=first_tokens):
                if (reservation := self.kv_pulls.get(request_id)) is not None:
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

    def _accept(
        self, now: float, router_id: str, command: Generate | Prefill | Reserve
    ) -> list[WorkerEffect]:
        spec = command.spec
        request = new_request(now, router_id, command, self.config)
        seq, effects = request.leader, list[WorkerEffect]()
        if isinstance(command, Reserve):
            held, is_producing = self.leases.held(spec.request_id), self.leases.num_open > 0
            pulls = self.kv_pulls.reserve(now, seq, command.source, held, is_producing=is_producing)
            reserved = Reserved(request_id=spec.request_id, num_cached_tokens=seq.num_cached_tokens or 0)
            effects = pulls + self.leases.withdraw(spec.request_id, "it is decoded where it was computed")
            effects.append(SendToRouter(router_id=router_id, message=reserved))
        elif request.is_prefill:
            most = self.config.scheduler.max_num_batched_tokens
            self.kv_pulls.require_room(self.config.paging.max_blocks(seq.num_initial_tokens, most))
            effects = self.leases.open(now, spec.request_id, router_id)
        effects += self.preparations.begin(now, spec)
        self._requests[spec.request_id] = request
        self._add_when_ready(spec.request_id)
        self._phases.open(now, router_id, spec, self.kv_pulls.get(spec.request_id))
        return effects

    def _on_prepared(self, now: float, event: GrammarCompiled | AdapterLoaded) -> list[WorkerEffect]:
        """Let the requests begin that waited for a grammar or an adapter, or end them."""
        effects: list[WorkerEffect] = []
        for request_id in self.preparations.end(event):
            if event.error:
                effects += self._fail(now, self._requests[request_id], event.code, event.error)
            else:
                self._add_when_ready(request_id)
        return effects

    def _add_when_ready(self, request_id: str) -> None:
        """Schedule a request that waits for nothing any more; a reservation begins with its blocks."""
        if request_id not in self.preparations and self.kv_pulls.get(request_id) is None:
            self.scheduler.add(self._requests[request_id].begin())

    def _start_ready(self, now: float) -> list[WorkerEffect]:
        """Let the reservations join the batch that have first tokens and blocks, and await nothing else."""
        effects: list[WorkerEffect] = []
        for request_id, tokens in self.kv_pulls.ready():
            if request_id in self.preparations:
                continue
            request = self._requests[request_id]
            transferred = self.kv_pulls.start(now, request_id)
            effects.append(SendToRouter(router_id=request.router_id, message=transferred))
            self._decode(now, request, tokens)
        return effects

    def _decode(self, now: float, request: WorkerRequest, tokens: dict[int, int]) -> None:
        """Decode the sequences that have `tokens`; all share the prompt's blocks."""
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
        plan, started_s = self.scheduler.in_flight.first.plan, self.scheduler.in_flight.first.started_s
        self.rates.end_step(plan, now - started_s, result)
        alive = self.scheduler.complete(now, result)
        self.health.end_step(now, result, [number for _, number in alive])
        for seq, number in alive:
            request, failure = self._requests.get(seq.seq_id.request_id), result.failures.get(number)
            if request is not None and failure is not None:
                effects += self._fail(now, request, result.error_code(number), failure)
            if request is None or failure is not None:
                continue
            sampled, logprobs = result.sampled[number], result.logprobs.get(number, ())
            self._phases.end_slice(started_s, now, plan.slices[number], seq.num_initial_tokens, len(sampled))
            if (pooled := result.pooled.get(number)) is not None:
                effects += request.emit(*self.outputs.pooled(now, seq, pooled))
                self._end(now, request, seq)
                continue
            if (entries := result.prompt_logprobs.get(number)) is not None:
                effects += request.emit(*self.outputs.prompt_logprobs(seq, entries))
            if request.is_prefill:
                blocks = seq.prompt_blocks(is_complete=bool(sampled))
                effects += self.leases.add_blocks(seq.seq_id.request_id, blocks)
            if sampled and not request.has_first_token:
                message = self.outputs.first_token(now, seq, sampled, logprobs)
                effects.append(self._on_first_token(now, request, message))
            elif sampled:
                if seq.num_tokens == seq.num_initial_tokens:
                    self._phases.make_ready(now, seq)
                    self._add_followers(request)
                output = self.outputs.next_tokens(seq, sampled, logprobs)
                self.scheduler.end_verification(seq, plan.slices[number])
                batches.setdefault(request.router_id, []).append(output)
                if output.finish_reason is not None:
                    self._end(now, request, seq)
        tokens = {router_id: TokenBatch(outputs=tuple(outputs)) for router_id, outputs in batches.items()}
        return [*effects, *(SendToRouter(router_id=one, message=batch) for one, batch in tokens.items())]

    def _add_followers(self, request: WorkerRequest) -> None:
        """Schedule the sequences that find the prompt in the cache; those that await more begin with it."""
        if request.spec.request_id not in self.preparations:
            for follower in request.take_followers():
                self.scheduler.add(follower)

    def _on_first_token(self, now: float, request: WorkerRequest, message: FirstToken) -> SendToRouter:
        request.has_first_token = True
        if request.is_prefill:
            self.leases.complete(now, request.spec.request_id)
            self._end(now, request, request.leader)
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
        return [e for one in failed.values() for e in self._fail(now, one, ErrorCode.INTERNAL, message)]

    def _return_requests(self, now: float) -> list[WorkerEffect]:
        """Return requests to their routers, which continue them elsewhere."""
        leaving = self.shutdown.requests_to_return(now, self._requests.values())
        return [effect for one in leaving for effect in self._fail(now, one, ErrorCode.UNAVAILABLE, LEAVING)]

    def _fail(self, now: float, request: WorkerRequest, code: ErrorCode, text: str) -> list[WorkerEffect]:
        failed = Failed(request_id=request.spec.request_id, code=code, message=text)
        return [*self._cancel(now, request), *request.emit(failed)]

    def _cancel(
        self, now: float, request: WorkerRequest, indices: tuple[int, ...] = ()
    ) -> list[WorkerEffect]:
        """End the sequences named, or all; a reserved prompt and a prefill end only as a whole."""
        request_id = request.spec.request_id
        if (reservation := self.kv_pulls.get(request_id)) is not None:
            tokens = reservation.first_tokens or {}
            for index in indices:
                tokens.pop(index, None)
            if indices and tokens:
                return []
            self._forget(request_id)
            return self.kv_pulls.cancel(now, request_id)
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
        self._add_followers(request)
        if not request.sequences:
            self._forget(request.spec.request_id)

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._phases.close(request_id)
        self.preparations.drop(request_id)
