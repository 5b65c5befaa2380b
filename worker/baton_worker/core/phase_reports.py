"""Follows each request of a worker, and reports its phases to its router once it is over here."""

from __future__ import annotations

from collections.abc import Set

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.sessions.router_messages import RequestSpec
from baton_core.worker.sequence import Sequence
from baton_core.worker.step_plan import SequenceSlice
from baton_core.worker.worker_events import Pull, PullAborted, PullDone, SendToRouter, WorkerEffect
from baton_decode.core.kv_pulls import Reservation
from baton_worker.core.phase_log import PhaseLog


class PhaseReports:
    """One `PhaseLog` for each request that is open at the worker."""

    def __init__(self, kv_spec: KVSpec) -> None:
        self._kv_spec = kv_spec
        self._logs: dict[str, PhaseLog] = {}
        self._over: list[PhaseLog] = []
        self._copies: dict[int, tuple[PhaseLog, Pull]] = {}
        """In flight, each with the log of the request that it is for; that request may be over."""

    def open(self, now: float, router_id: str, spec: RequestSpec, reservation: Reservation | None) -> None:
        """The worker has taken a request, one that pulls its prompt with a reservation."""
        log = PhaseLog(now, router_id, spec, is_pulled=reservation is not None)
        if reservation is not None:
            log.reserve(reservation.seq, reservation.pending, self._kv_spec.block_size)
        self._logs[spec.request_id] = log

    def note_copies(self, now: float, request_id: str, effects: list[WorkerEffect]) -> list[WorkerEffect]:
        """Take the copies that begin for a request; returns the effects as they are."""
        log = self._logs.get(request_id)
        for effect in effects:
            if isinstance(effect, Pull) and log is not None:
                log.begin_copy(now, effect)
                self._copies[effect.pull_id] = log, effect
        return effects

    def end_copy(self, now: float, event: PullDone | PullAborted) -> None:
        """End a copy whose blocks nothing writes any more; an abort ends it only with a fence."""
        if isinstance(event, PullAborted) and not event.is_fenced:
            return
        log, pull = self._copies.pop(event.pull_id, (None, None))
        if log is None or pull is None:
            return
        num_blocks = len(pull.blocks) - len(event.failed_block_ids) if isinstance(event, PullDone) else 0
        log.end_copy(now, event.pull_id, num_blocks * self._kv_spec.block_bytes)

    def make_ready(self, now: float, leader: Sequence) -> None:
        """A request has its first tokens, and its blocks as far as they arrive."""
        self._logs[leader.seq_id.request_id].make_ready(now, leader)

    def end_slice(
        self, started_s: float, now: float, piece: SequenceSlice, num_initial: int, num_sampled: int
    ) -> None:
        """A slice of a step is computed; those of the tokens given and the first behind count, and drafts."""
        if piece.num_drafts:
            self._logs[piece.seq_id.request_id].verify(piece.num_drafts, num_sampled - 1)
        if piece.start <= num_initial:
            end = piece.start + piece.num_scheduled_tokens
            self._logs[piece.seq_id.request_id].compute(started_s, now, piece.start, end, num_initial)

    def end_sequence(self, seq: Sequence) -> None:
        self._logs[seq.seq_id.request_id].end_sequence(seq)

    def close(self, request_id: str) -> None:
        """The worker is done with a request; does nothing if it was reported already."""
        if (log := self._logs.pop(request_id, None)) is not None:
            self._over.append(log)

    def publish(self, now: float) -> list[WorkerEffect]:
        """Report the requests that are over."""
        over, self._over = self._over, []
        return [SendToRouter(router_id=log.router_id, message=log.report(now)) for log in over]

    def check_invariants(self, request_ids: Set[str]) -> None:
        """Raise AssertionError when a request is open without a log, or the reverse."""
        assert self._logs.keys() == request_ids, "a request without a log, or the reverse"
        assert not self._over, "requests are over that were not reported"
