"""The brain of a worker: takes requests, plans steps, holds and imports blocks.

Owned by the loop thread, which feeds it events and executes its effects; the engine thread sees only the
plans. A prefill worker and a decode worker run the same core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from baton_core.block_hash import root_hash
from baton_core.block_pool import BlockPool
from baton_core.errors import BatonError, ErrorCode, InvalidRequestError
from baton_core.finish import FinishReason, finish_reason
from baton_core.imports import Imports
from baton_core.lease_table import LeaseTable
from baton_core.router_messages import (
    CacheDelta,
    Cancel,
    Failed,
    FirstToken,
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
from baton_core.scheduler import Scheduler
from baton_core.sequence import Sequence, SequenceState
from baton_core.step_plan import SeqId, StepPlan
from baton_core.worker_config import WorkerConfig
from baton_core.worker_events import (
    HolderSaid,
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
from baton_core.worker_info import WorkerLoad


@dataclass(slots=True, kw_only=True)
class _Request:
    spec: RequestSpec
    router_id: str
    sequences: dict[int, Sequence]
    is_prefill: bool = False
    has_first_token: bool = False


class WorkerCore:
    """Events in, effects out; `schedule` plans the next step when none is in flight."""

    def __init__(self, config: WorkerConfig) -> None:
        max_chunk = config.scheduler.max_num_batched_tokens
        needed = config.paging.max_blocks(config.max_model_len, max_chunk)
        assert needed <= config.num_blocks, "max_model_len exceeds the pool"
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.scheduler = Scheduler(self.pool, config.paging, config.scheduler)
        self.leases = LeaseTable(
            self.pool, epoch=config.epoch, needs_seal=config.is_verified_by_checksum, timings=config.hold
        )
        self.imports = Imports(
            self.pool,
            paging=config.paging,
            block_bytes=config.kv_spec.block_bytes,
            is_verified_by_checksum=config.is_verified_by_checksum,
            worker_id=config.worker_id,
            epoch=config.epoch,
            timings=config.pull,
        )
        self._requests: dict[str, _Request] = {}
        self._routers: dict[str, None] = {}
        self._roots: dict[str, bytes] = {}
        self._step_started_s: float | None = None

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def on_event(self, now: float, event: WorkerEvent) -> list[WorkerEffect]:
        """Take one event; returns what the shell has to do, in order."""
        effects = self._dispatch(now, event)
        effects += self._start_ready(now)
        if (delta := self.pool.cache.take_delta()) is not None:
            effects += [SendToRouter(router_id=router_id, message=delta) for router_id in self._routers]
        return effects

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step; None while one is in flight and when there is nothing to compute."""
        if self.scheduler.is_step_in_flight:
            return None
        plan = self.scheduler.schedule(now)
        self._step_started_s = now if plan else None
        return plan

    def next_deadline(self) -> float | None:
        """When `on_deadline` is due."""
        deadlines = (self.leases.next_deadline(), self.imports.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_deadline(self, now: float) -> list[WorkerEffect]:
        """Act on every wait that is over."""
        self.leases.expire(now)
        return self.imports.on_deadline(now) + self._start_ready(now)

    def load(self, now: float) -> WorkerLoad:
        """What heartbeats tell the routers."""
        return WorkerLoad(
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
            num_queued_tokens=self.scheduler.num_queued_tokens,
            num_available_blocks=self.pool.num_available,
            step_age_s=now - self._step_started_s if self._step_started_s is not None else 0.0,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when parts disagree about a block or a request."""
        self.pool.check_invariants()
        self.leases.check_invariants()
        self.imports.check_invariants()
        is_idle = not (self._requests or self.leases.num_open or self.imports.num_transfers)
        if is_idle and not self.scheduler.is_step_in_flight:
            assert self.pool.num_available == self.pool.num_blocks, "idle, but blocks are in use"

    # --- dispatch ---

    def _dispatch(self, now: float, event: WorkerEvent) -> list[WorkerEffect]:
        match event:
            case RouterSaid(router_id=router_id, message=message):
                return self._on_command(now, router_id, message)
            case RouterJoined(router_id=router_id):
                self._routers[router_id] = None
                stored = self.pool.cache.snapshot()
                return (
                    [SendToRouter(router_id=router_id, message=CacheDelta(stored=stored))] if stored else []
                )
            case RouterLost(router_id=router_id):
                self._routers.pop(router_id, None)
                lost = [r for r in self._requests.values() if r.router_id == router_id]
                return [effect for request in lost for effect in self._cancel(now, request)]
            case PullerSaid(peer_id=peer_id, message=message):
                return self.leases.on_message(now, peer_id, message)
            case HolderSaid(message=message):
                return self.imports.on_message(now, message)
            case Sealed():
                return self.leases.on_sealed(event)
            case SealFailed(request_id=request_id, message=message):
                return self.leases.withdraw(request_id, message)
            case PullDone():
                return self.imports.on_pull_done(now, event)
            case PullAborted():
                return self.imports.on_pull_aborted(now, event)
            case StepDone(result=result):
                self._step_started_s = None
                return self._on_tokens(now, self.scheduler.complete(now, result))
            case StepFailed(message=message):
                self._step_started_s = None
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
        assert_never(command)

    # --- taking requests ---

    def _check(self, spec: RequestSpec) -> None:
        self.config.check(spec)
        if spec.request_id in self._requests:
            raise InvalidRequestError("request_id", spec.request_id, "a name that no running request has")
        if len(self._requests) >= self.config.max_num_requests:
            raise _OverloadedError(f"this worker has {len(self._requests)} requests, its maximum")

    def _accept(
        self, now: float, router_id: str, command: Generate | Prefill | Reserve
    ) -> list[WorkerEffect]:
        spec = command.spec
        is_reserve = isinstance(command, Reserve)
        seq = Sequence(
            SeqId(spec.request_id, 0),
            spec.prompt_token_ids,
            spec.params,
            paging=self.config.paging,
            root=self._root(spec.cache_salt),
            arrival_s=now,
            state=SequenceState.IMPORTING if is_reserve else SequenceState.WAITING,
            priority=spec.priority,
            is_pinned=isinstance(command, Prefill),
        )
        request = _Request(
            spec=spec,
            router_id=router_id,
            sequences={0: seq},
            is_prefill=isinstance(command, Prefill),
            has_first_token=is_reserve,
        )
        effects: list[WorkerEffect] = []
        if isinstance(command, Reserve):
            pulls = self.imports.reserve(now, seq, command.source)
            if pulls is None:
                raise _OverloadedError(f"{self.pool.num_available} of {self.pool.num_blocks} blocks are free")
            reserved = Reserved(request_id=spec.request_id, num_cached_tokens=seq.num_cached_tokens or 0)
            effects = [*pulls, SendToRouter(router_id=router_id, message=reserved)]
        else:
            self.scheduler.add(seq)
            if request.is_prefill:
                effects = self.leases.open(now, spec.request_id)
        self._requests[spec.request_id] = request
        return effects

    def _root(self, cache_salt: str) -> bytes:
        if cache_salt not in self._roots:
            if len(self._roots) >= 1024:
                self._roots.clear()
            self._roots[cache_salt] = root_hash(self.config.identity, cache_salt)
        return self._roots[cache_salt]

    def _start_ready(self, now: float) -> list[WorkerEffect]:
        """Let the reservations that have both their first tokens and their blocks join the batch."""
        effects: list[WorkerEffect] = []
        for request_id, tokens in self.imports.ready():
            request = self._requests[request_id]
            transferred = self.imports.start(now, request_id)
            effects.append(SendToRouter(router_id=request.router_id, message=transferred))
            self._decode(now, request, tokens)
        return effects

    def _decode(self, now: float, request: _Request, tokens: dict[int, int]) -> None:
        """Go on from the prompt with the sequences that have `tokens`; all share the prompt's blocks."""
        leader = request.sequences[0]
        leader.num_samples = 1
        for index in tokens:
            if index:
                request.sequences[index] = leader.fork(index)
                self.pool.share(leader.tables.held())
        for index, token_id in tokens.items():
            seq = request.sequences[index]
            seq.token_ids.append(token_id)
            if seq.state is SequenceState.WAITING:
                self.scheduler.add(seq)
        if 0 not in tokens:
            self._end(now, request, leader)

    # --- steps ---

    def _on_tokens(self, now: float, computed: list[tuple[Sequence, tuple[int, ...]]]) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        batches: dict[str, list[SequenceOutput]] = {}
        for seq, sampled in computed:
            request = self._requests[seq.seq_id.request_id]
            if request.is_prefill:
                effects += self._offer(seq, is_complete=bool(sampled))
            if sampled and not request.has_first_token:
                effects.append(self._on_first_token(now, request, seq, sampled))
            elif sampled:
                seq.token_ids.append(sampled[0])
                output = self._output(seq, sampled[0])
                batches.setdefault(request.router_id, []).append(output)
                if output.finish_reason is not None:
                    self._end(now, request, seq)
        for router_id, outputs in batches.items():
            message = TokenBatch(outputs=tuple(outputs))
            effects.append(SendToRouter(router_id=router_id, message=message))
        return effects

    def _offer(self, seq: Sequence, *, is_complete: bool) -> list[WorkerEffect]:
        num_ready = seq.num_computed_tokens // self.config.paging.block_size
        blocks = {
            place.number: seq.tables[place.group][place.index]
            for place in self.config.paging.prompt_places(seq.num_prompt_tokens)
            if is_complete or place.index < num_ready
        }
        return self.leases.add_blocks(seq.seq_id.request_id, blocks)

    def _on_first_token(
        self, now: float, request: _Request, leader: Sequence, sampled: tuple[int, ...]
    ) -> SendToRouter:
        request.has_first_token = True
        outputs = [
            SequenceOutput(
                request_id=request.spec.request_id,
                index=index,
                token_ids=(token_id,),
                finish_reason=self._finish_reason(request.spec, token_id, 1, leader.num_tokens + 1),
            )
            for index, token_id in enumerate(sampled)
        ]
        message = FirstToken(
            request_id=request.spec.request_id,
            outputs=tuple(outputs),
            num_cached_tokens=leader.num_cached_tokens or 0,
            queue_s=leader.entered_s[SequenceState.RUNNING] - leader.arrival_s,
            prefill_s=now - leader.entered_s[SequenceState.RUNNING],
        )
        if request.is_prefill:
            self.leases.complete(now, request.spec.request_id)
            self._end(now, request, leader)
        else:
            alive = {output.index: output.token_ids[0] for output in outputs if not output.finish_reason}
            self._decode(now, request, alive)
        return SendToRouter(router_id=request.router_id, message=message)

    def _output(self, seq: Sequence, token_id: int) -> SequenceOutput:
        spec = self._requests[seq.seq_id.request_id].spec
        reason = self._finish_reason(spec, token_id, seq.num_output_tokens, seq.num_tokens)
        return SequenceOutput(
            request_id=spec.request_id, index=seq.seq_id.index, token_ids=(token_id,), finish_reason=reason
        )

    def _finish_reason(
        self, spec: RequestSpec, token_id: int, num_output_tokens: int, num_tokens: int
    ) -> FinishReason | None:
        return finish_reason(
            spec.params,
            token_id=token_id,
            num_output_tokens=num_output_tokens,
            num_tokens=num_tokens,
            eos_token_ids=self.config.eos_token_ids,
            max_model_len=self.config.max_model_len,
        )

    def _on_step_failed(self, now: float, message: str) -> list[WorkerEffect]:
        failed: dict[str, _Request] = {}
        for seq in self.scheduler.fail_step(now):
            request = self._requests[seq.seq_id.request_id]
            del request.sequences[seq.seq_id.index]
            failed[seq.seq_id.request_id] = request
        effects: list[WorkerEffect] = []
        for request_id, request in failed.items():
            effects += self._cancel(now, request)
            notice = Failed(request_id=request_id, code=ErrorCode.INTERNAL, message=message)
            effects.append(SendToRouter(router_id=request.router_id, message=notice))
        return effects

    # --- ends ---

    def _cancel(self, now: float, request: _Request, indices: tuple[int, ...] = ()) -> list[WorkerEffect]:
        """End the sequences named, or all; a reserved prompt and a prefill end only as a whole."""
        request_id = request.spec.request_id
        if (reservation := self.imports.get(request_id)) is not None:
            tokens = reservation.first_tokens or {}
            for index in indices:
                tokens.pop(index, None)
            if indices and tokens:
                return []
            del self._requests[request_id]
            return self.imports.cancel(now, request_id)
        for index in indices or tuple(request.sequences):
            if (seq := request.sequences.get(index)) is not None:
                self._end(now, request, seq)
        if not request.sequences or not indices:
            self._requests.pop(request_id, None)
        return self.leases.withdraw(request_id, "the request was cancelled") if request.is_prefill else []

    def _end(self, now: float, request: _Request, seq: Sequence) -> None:
        self.scheduler.remove(now, seq)
        del request.sequences[seq.seq_id.index]
        if not request.sequences:
            del self._requests[request.spec.request_id]


class _OverloadedError(BatonError):
    code = ErrorCode.OVERLOADED
