"""Mistakes that a core could have, put into it for a while: each has to be seen by the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.sessions.peer_messages import BlocksReady, Confirmed
from baton_core.sessions.session import SessionMachine
from baton_core.worker.sequence import SequenceInput
from baton_core.worker.worker_events import SendToConsumer
from baton_decode.core.kv_pulls import KvPulls
from baton_decode.core.transfer import Transfer
from baton_prefill.core.lease_table import LeaseTable
from baton_router.core.admission.assignment import Assignment
from baton_router.core.flow.token_stream import TokenStream
from baton_simulator import sliced_engine
from baton_simulator.hash_engine import ONE_KIND
from baton_simulator.scenario import FaultKind, Scenario, make_scenario
from baton_simulator.transports import BACKENDS, SHORT
from baton_worker.core.plan_builder import PlanBuilder
from baton_worker.core.scheduler import Scheduler
from baton_worker.core.speculation.model_drafts import ModelDrafts

Mutation = Callable[[Any], Any]
"""Makes a method out of the one that it takes the place of."""


def _reuse_quarantined_blocks(original: Any) -> Any:
    """An abort counts as a fence, although the transport goes on writing."""

    def on_pull_aborted(self: Transfer, now: float, pull_id: int, *, is_fenced: bool) -> Any:
        return original(self, now, pull_id, is_fenced=True)

    return on_pull_aborted


def _act_for_another_epoch(original: Any) -> Any:
    """A message for an earlier life of the producer is taken as its own."""

    def on_message(self: LeaseTable, now: float, peer_id: bytes, message: Any) -> Any:
        epoch = self._epoch
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        return original(self, now, peer_id, type(message)(**{**fields, "producer_epoch": epoch}))

    return on_message


def _free_on_cancel(original: Any) -> Any:
    """A transfer that is given up does not wait for its copies in flight."""

    def give_up(self: Transfer, now: float, reason: str) -> Any:
        self._in_flight.clear()
        return original(self, now, reason)

    return give_up


def _free_in_step(original: Any) -> Any:
    """A sequence that ends while a step computes it does not wait for the step."""

    def remove(self: Scheduler, now: float, seq: Any) -> None:
        original(self, now, seq)
        if seq.state == "draining":
            self._pool.release(seq.tables.cut(0))

    return remove


def _follow_the_wrong_draws(original: Any) -> Any:
    """A step that is planned ahead takes the first draws, whoever is left out."""

    def schedule_ahead(self: Scheduler, now: float, ends_with_next: Any) -> Any:
        plan = original(self, now, ends_with_next)
        if plan is None:
            return None
        rows = tuple(range(len(plan.slices)))
        return replace(plan, follows=replace(plan.follows, rows=rows))

    return schedule_ahead


def _compute_in_two_steps(original: Any) -> Any:
    """A stage of a pipeline is given what another one computes."""
    return lambda self: list(self._running)


def _confirm_without_checking(original: Any) -> Any:
    """The producer says that whatever was pulled was held."""

    def confirm(self: LeaseTable, peer_id: bytes, message: Any) -> Any:
        answer = Confirmed(transfer_id=message.transfer_id, producer_epoch=self._epoch, is_held=True)
        return [SendToConsumer(peer_id=peer_id, message=answer)]

    return confirm


def _ignore_checksums(original: Any) -> Any:
    """A block that arrived wrong is taken."""

    def on_pull_done(self: Transfer, now: float, pull_id: int, failed: Any, error: str) -> Any:
        return original(self, now, pull_id, () if not error else failed, error)

    return on_pull_done


def _renew_what_has_ended(original: Any) -> Any:
    """The producer renews a lease that it has not got any more."""

    def renew(self: LeaseTable, now: float, peer_id: bytes, message: Any) -> Any:
        if self._offer_of(peer_id, message.transfer_id) is not None:
            return original(self, now, peer_id, message)
        answer = BlocksReady(
            transfer_id=message.transfer_id, producer_epoch=self._epoch, offers=(), renewal=message.renewal
        )
        return [SendToConsumer(peer_id=peer_id, message=answer)]

    return renew


def _keep_what_is_withdrawn(original: Any) -> Any:
    """The blocks of a request that was cancelled stay leased."""

    def withdraw(self: LeaseTable, request_id: str, reason: str) -> Any:
        return []

    return withdraw


def _forget_reservation(original: Any) -> Any:
    """A reservation that is cancelled keeps its blocks."""

    def cancel(self: KvPulls, now: float, request_id: str) -> Any:
        reservation = self._reservations.pop(request_id, None)
        if reservation is not None:
            reservation.seq.apply(now, SequenceInput.END)
        return []

    return cancel


def _take_repeated_frames(original: Any) -> Any:
    """A session that goes on with a new stream delivers again what was written again."""

    def on_frame(self: SessionMachine[Any, Any], now: float, frame: Any) -> Any:
        taken = original(self, now, frame)
        if not taken and not self.is_over and getattr(frame, "number", self._received + 1) <= self._received:
            return (frame.payload,)
        return taken

    return on_frame


def _resume_one_token_early(original: Any) -> Any:
    """A request that is moved forgets its last token, which is generated and emitted again."""

    def resumed(self: TokenStream) -> Any:
        return tuple(
            replace(one, token_ids=one.token_ids[:-1] or one.token_ids) for one in original.fget(self)
        )

    return property(resumed)


def _forget_what_workers_hold(original: Any) -> Any:
    """A request goes to workers that do not hold it."""

    def request(self: Assignment, *arguments: Any) -> Any:
        return replace(original(self, *arguments), num_needed_tokens=0)

    return request


def _end_at_a_workers_limit(original: Any) -> Any:
    """A sequence ends where its worker holds no more of it."""
    return lambda self, output: False


def _order_without_the_last_token(original: Any) -> Any:
    """A model is told of a text that lacks a token."""

    def order(self: ModelDrafts, token_ids: Any, num_tokens: int) -> Any:
        return original(self, token_ids[:-1], num_tokens)

    return order


def _repeat_the_chunk_in_flight(original: Any) -> Any:
    """The next chunk of a prompt is the one that a step computes already."""

    def add(self: PlanBuilder, seq: Any, num_tokens: int, copies: Any, num_ahead: int = 0) -> Any:
        return original(self, seq, num_tokens, copies)

    return add


def _read_a_neighbours_head(original: Any) -> Any:
    """A rank reads one head of a block twice, and another one not at all."""

    def plan_reads(spec: KVSpec, producers: Any, consumers: Any, rank: int) -> Any:
        plan = original(spec, producers, consumers, rank)
        producer = max(plan)
        (first, *others) = plan[producer]
        if rank == 1:
            source = first.source - spec.head_bytes if first.source else spec.head_bytes
            first = replace(first, source=source, num_bytes=spec.head_bytes)
        return {**plan, producer: (first, *others)}

    return plan_reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A method or a function that does something else, and where that matters soon."""

    owner: type | ModuleType
    method: str
    mutate: Mutation
    kinds: str
    """Faults of the scenarios, separated by commas."""
    topology: str = "1p1d"
    backend: str = ""
    """Empty lets each seed choose."""
    sizes: tuple[ParallelSizes, ...] = ()
    """Ranks of the workers, in their order; empty lets each seed choose."""

    def scenario(self, seed: int) -> Scenario:
        scenario = make_scenario(seed, self.topology, frozenset(map(FaultKind, self.kinds.split(","))))
        if self.sizes:
            names = (name for name, _ in scenario.topology.workers)
            scenario = replace(scenario, ranks=dict(zip(names, self.sizes, strict=True)), windows=ONE_KIND)
        if not self.backend:
            return scenario
        return replace(scenario, backend=BACKENDS[self.backend], timings=SHORT)

    @contextmanager
    def made(self) -> Iterator[None]:
        """The core with this mistake, until the end of the block."""
        original = self.owner.__dict__[self.method]
        setattr(self.owner, self.method, self.mutate(original))
        try:
            yield
        finally:
            setattr(self.owner, self.method, original)


READS_WRONG: Final = Mistake(
    owner=sliced_engine,
    method="plan_reads",
    mutate=_read_a_neighbours_head,
    kinds="cancel",
    backend="in_process",
    sizes=(ParallelSizes(tensor=2), ParallelSizes(tensor=4)),
)
MISTAKES: Final = {
    "read a neighbour's head": READS_WRONG,
    "order a draft of another text": Mistake(
        owner=ModelDrafts, method="order", mutate=_order_without_the_last_token, kinds="cancel"
    ),
    "drop a fence": Mistake(
        owner=Transfer,
        method="on_pull_aborted",
        mutate=_reuse_quarantined_blocks,
        kinds="crash,cancel",
        backend="rdma",
    ),
    "skip an epoch check": Mistake(
        owner=LeaseTable, method="on_message", mutate=_act_for_another_epoch, kinds="crash"
    ),
    "free on cancel": Mistake(
        owner=Transfer, method="give_up", mutate=_free_on_cancel, kinds="crash,cancel", backend="rdma"
    ),
    "free in a step": Mistake(owner=Scheduler, method="remove", mutate=_free_in_step, kinds="crash,cancel"),
    "follow the wrong draws": Mistake(
        owner=Scheduler, method="schedule_ahead", mutate=_follow_the_wrong_draws, kinds="crash,cancel"
    ),
    "compute in two steps": Mistake(
        owner=Scheduler, method="_idle", mutate=_compute_in_two_steps, kinds="crash,cancel"
    ),
    "repeat a chunk": Mistake(
        owner=PlanBuilder, method="add", mutate=_repeat_the_chunk_in_flight, kinds="crash,cancel"
    ),
    "confirm without checking": Mistake(
        owner=LeaseTable,
        method="_confirm",
        mutate=_confirm_without_checking,
        kinds="freeze,drift",
        backend="rdma",
    ),
    "take a block with a wrong checksum": Mistake(
        owner=Transfer, method="on_pull_done", mutate=_ignore_checksums, kinds="garble", backend="tcp"
    ),
    "renew a lease after it ended": Mistake(
        owner=LeaseTable, method="_renew", mutate=_renew_what_has_ended, kinds="freeze,drift", backend="rdma"
    ),
    "forget to release on cancel": Mistake(
        owner=LeaseTable, method="withdraw", mutate=_keep_what_is_withdrawn, kinds="cancel,crash"
    ),
    "forget a reservation on cancel": Mistake(
        owner=KvPulls, method="cancel", mutate=_forget_reservation, kinds="cancel,crash"
    ),
    "emit a token twice on a resumed session": Mistake(
        owner=SessionMachine, method="on_frame", mutate=_take_repeated_frames, kinds="freeze"
    ),
    "emit a token twice on a moved request": Mistake(
        owner=TokenStream, method="resumed", mutate=_resume_one_token_early, kinds="crash", topology="1p2d"
    ),
    "place where it does not fit": Mistake(
        owner=Assignment, method="_request", mutate=_forget_what_workers_hold, kinds="crash", topology="3m"
    ),
    "end a stream at its worker's limit": Mistake(
        owner=TokenStream,
        method="outgrows_worker",
        mutate=_end_at_a_workers_limit,
        kinds="crash",
        topology="3m",
    ),
}
