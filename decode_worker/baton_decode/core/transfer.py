"""The consumer's side of a transfer: one request's blocks, from subscription to release.

Pure plan: it says what to send and what to copy; a connector executes. Every wait has a deadline: the
producer must be heard from within `pull_deadline_s`, and each copy must end within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from baton_core.sessions.peer_messages import (
    BlockOffer,
    BlocksReady,
    Confirm,
    Confirmed,
    LeaseGone,
    LeaseRenew,
    Release,
    Subscribe,
    ToConsumer,
    ToProducer,
    split_offers,
)
from baton_core.sessions.router_messages import KVSource
from baton_core.worker.worker_events import AbortPull, BlockPull, Pull, SendToProducer, WorkerEffect


class TransferState(StrEnum):
    PULLING = "pulling"
    CONFIRMING = "confirming"
    DRAINING = "draining"
    """Given up; copies in flight still write its blocks."""
    QUARANTINED = "quarantined"
    """Given up, and a copy cannot be stopped: its blocks wait until it is terminal."""
    DONE = "done"
    FAILED = "failed"


class TransferInput(StrEnum):
    ALL_COPIED = "all_copied"
    ALL_VALID = "all_valid"
    GIVE_UP = "give_up"
    GIVE_UP_IN_FLIGHT = "give_up_in_flight"
    UNFENCED = "unfenced"
    DRAINED = "drained"


_S, _I = TransferState, TransferInput
TRANSITIONS: Final[dict[tuple[TransferState, TransferInput], TransferState]] = {
    (_S.PULLING, _I.ALL_COPIED): _S.CONFIRMING,
    (_S.PULLING, _I.ALL_VALID): _S.DONE,
    (_S.PULLING, _I.GIVE_UP): _S.FAILED,
    (_S.PULLING, _I.GIVE_UP_IN_FLIGHT): _S.DRAINING,
    (_S.CONFIRMING, _I.ALL_VALID): _S.DONE,
    (_S.CONFIRMING, _I.GIVE_UP): _S.FAILED,
    (_S.DRAINING, _I.UNFENCED): _S.QUARANTINED,
    (_S.DRAINING, _I.DRAINED): _S.FAILED,
    (_S.QUARANTINED, _I.DRAINED): _S.FAILED,
}
TERMINAL: Final = frozenset({TransferState.DONE, TransferState.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class PullTimings:
    lease_s: float = 10.0
    renew_s: float = 3.0
    pull_deadline_s: float = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStep:
    """The result of an input to a transfer: effects, and the new states of its blocks."""

    effects: tuple[WorkerEffect, ...] = ()
    valid: tuple[int, ...] = ()
    """Local blocks that may be read from now on."""
    lost: tuple[int, ...] = ()
    """Local blocks that will not become valid and that nothing writes."""
    quarantined: tuple[int, ...] = ()
    """Local blocks that will not become valid, but may still be written."""
    fenced: tuple[int, ...] = ()
    """Quarantined blocks that nothing writes any more."""


@dataclass(slots=True, kw_only=True)
class _Copy:
    """A pull in flight."""

    indices: tuple[int, ...]
    deadline: float
    is_quarantined: bool = False


class Transfer:
    """Pulls `wanted` (place in the prompt's block tables to local block) from one producer."""

    def __init__(
        self,
        transfer_id: str,
        request_id: str,
        source: KVSource,
        wanted: Mapping[int, int],
        *,
        is_verified_by_checksum: bool,
        next_pull_id: Callable[[], int],
        timings: PullTimings,
    ) -> None:
        assert wanted, "a transfer moves at least one block"
        self.transfer_id = transfer_id
        self.request_id = request_id
        self.source = source
        self.reason = ""
        """The reason why it failed."""
        self._state = TransferState.PULLING
        self._awaited = dict(wanted)
        self._is_verified_by_checksum = is_verified_by_checksum
        self._next_pull_id = next_pull_id
        self._timings = timings
        self._offers: dict[int, BlockOffer] = {}
        self._copied: set[int] = set()
        self._unconfirmed: dict[int, tuple[BlockOffer, ...]] = {}
        """Copied blocks that the producer is asked about, by the part of the question."""
        self._in_flight: dict[int, _Copy] = {}
        self._heard_at = 0.0
        self._is_answered = False
        self._renewals: dict[int, float] = {}
        self._num_renewals = 0
        self._renew_at = 0.0
        self._lease_until = 0.0

    @property
    def state(self) -> TransferState:
        return self._state

    @property
    def in_flight_blocks(self) -> tuple[int, ...]:
        """Local blocks that are not valid yet and whose import this transfer has still to end."""
        return tuple(self._awaited.values())

    def start(self, now: float) -> TransferStep:
        """Subscribe at the producer."""
        self._heard_at = now
        self._lease_until = now + self._timings.lease_s
        self._renew_at = now + self._timings.renew_s
        return self._sent(self._subscription())

    def on_message(self, now: float, message: ToConsumer) -> TransferStep:
        """Take an answer of the producer; one too late to matter changes nothing.

        Another epoch of the producer can say only one thing that matters: that the lease is gone.
        """
        is_heard = message.producer_epoch == self.source.epoch or isinstance(message, LeaseGone)
        if not self._is_live or not is_heard:
            return TransferStep()
        self._heard_at, self._is_answered = now, True
        match message:
            case BlocksReady():
                return self._on_ready(now, message)
            case Confirmed(is_held=True, part=part):
                return self._on_held(part)
            case Confirmed():
                return self.give_up(now, f"worker {self.source.worker_id} did not keep the lease")
            case LeaseGone(reason=reason):
                return self.give_up(now, f"worker {self.source.worker_id} ended the lease: {reason}")

    def on_pull_done(
        self, now: float, pull_id: int, failed_block_ids: Iterable[int], error: str
    ) -> TransferStep:
        """A copy is terminal: nothing writes its blocks any more."""
        copy = self._in_flight.pop(pull_id)
        if self._state is not TransferState.PULLING:
            return self._drained(copy)
        failed = set(failed_block_ids)
        if error and not failed:
            failed = {self._awaited[index] for index in copy.indices}
        good = tuple(index for index in copy.indices if self._awaited[index] not in failed)
        step = self._validate(good) if self._is_verified_by_checksum else self._hold_copied(good)
        if len(good) == len(copy.indices):
            return step
        why = error or "checksums differ"
        given_up = self.give_up(
            now, f"{len(failed)} blocks of worker {self.source.worker_id} did not arrive: {why}"
        )
        return replace(given_up, valid=step.valid)

    def on_pull_aborted(self, now: float, pull_id: int, *, is_fenced: bool) -> TransferStep:
        """Answer to an abort, or a failed connector; without a fence the blocks wait for the copy's end."""
        copy = self._in_flight.get(pull_id)
        if copy is None:
            return TransferStep()
        given_up = self.give_up(now, f"the copy from worker {self.source.worker_id} broke down")
        if is_fenced:
            step = self._drained(self._in_flight.pop(pull_id))
        else:
            step = TransferStep() if copy.is_quarantined else self._quarantine(copy)
        others = tuple(effect for effect in given_up.effects if effect != AbortPull(pull_id=pull_id))
        return replace(step, effects=others + step.effects, lost=given_up.lost + step.lost)

    def give_up(self, now: float, reason: str) -> TransferStep:
        """End without the rest of the blocks, after the copies in flight."""
        if not self._is_live:
            return TransferStep()
        self.reason = reason
        busy = {index for copy in self._in_flight.values() for index in copy.indices}
        lost = tuple(self._awaited.pop(index) for index in list(self._awaited) if index not in busy)
        if not self._in_flight:
            self._apply(TransferInput.GIVE_UP)
            return replace(self._sent(self._release()), lost=lost)
        self._apply(TransferInput.GIVE_UP_IN_FLIGHT)
        for copy in self._in_flight.values():
            copy.deadline = now + self._timings.pull_deadline_s
        return TransferStep(
            effects=tuple(AbortPull(pull_id=pull_id) for pull_id in self._in_flight), lost=lost
        )

    def next_deadline(self) -> float | None:
        """The time when `on_deadline` is due."""
        deadlines = [copy.deadline for copy in self._in_flight.values() if not copy.is_quarantined]
        if self._is_live:
            silent_at = self._heard_at + self._timings.pull_deadline_s
            deadlines += [self._renew_at, silent_at, self._lease_until]
        return min(deadlines, default=None)

    def on_deadline(self, now: float) -> TransferStep:
        """Renew, or give up what took too long."""
        late = [copy for copy in self._in_flight.values() if copy.deadline <= now and not copy.is_quarantined]
        if not self._is_live:
            return self._quarantine(late[0]) if late else TransferStep()
        limit_s = self._timings.pull_deadline_s
        if now >= self._heard_at + limit_s:
            return self.give_up(now, f"no answer from worker {self.source.worker_id} for {limit_s:g} s")
        if late:
            return self.give_up(now, f"a copy from worker {self.source.worker_id} took over {limit_s:g} s")
        if now >= self._lease_until:
            return self.give_up(now, f"the lease of worker {self.source.worker_id} ran out")
        return self._renew(now) if now >= self._renew_at else TransferStep()

    # --- parts ---

    @property
    def _is_live(self) -> bool:
        """True until it has its blocks or was given up."""
        return self._state in (TransferState.PULLING, TransferState.CONFIRMING)

    @property
    def _is_confirming(self) -> bool:
        return self._state is TransferState.CONFIRMING

    def _on_ready(self, now: float, message: BlocksReady) -> TransferStep:
        for renewal in [renewal for renewal in self._renewals if renewal <= message.renewal]:
            self._lease_until = self._renewals.pop(renewal) + self._timings.lease_s
        fresh = {
            offer.index: offer
            for offer in message.offers
            if offer.index in self._awaited and offer.index not in self._offers
        }
        if not fresh:
            return TransferStep()
        self._offers.update(fresh)
        pull_id = self._next_pull_id()
        self._in_flight[pull_id] = _Copy(indices=tuple(fresh), deadline=now + self._timings.pull_deadline_s)
        blocks = tuple(
            BlockPull(
                remote_block_id=offer.block_id,
                local_block_id=self._awaited[offer.index],
                checksum=offer.checksum,
            )
            for offer in fresh.values()
        )
        return TransferStep(effects=(Pull(pull_id=pull_id, source=self.source, blocks=blocks),))

    def _validate(self, indices: tuple[int, ...]) -> TransferStep:
        """These blocks are right; with the last one the transfer is done and the lease ends."""
        valid = tuple(self._awaited.pop(index) for index in indices)
        if self._awaited:
            return TransferStep(valid=valid)
        self._apply(TransferInput.ALL_VALID)
        return replace(self._sent(self._release()), valid=valid)

    def _hold_copied(self, indices: tuple[int, ...]) -> TransferStep:
        """These blocks arrived, right if the lease held; with the last one, ask."""
        self._copied.update(indices)
        if self._copied != self._awaited.keys():
            return TransferStep()
        self._apply(TransferInput.ALL_COPIED)
        offers = [self._offers[index] for index in self._awaited]
        self._unconfirmed = dict(enumerate(split_offers(offers)))
        return self._sent(*self._confirmations())

    def _on_held(self, part: int) -> TransferStep:
        """The lease held for these blocks; with the last of them all are right."""
        if not self._is_confirming:
            return TransferStep()
        self._unconfirmed.pop(part, None)
        return TransferStep() if self._unconfirmed else self._validate(tuple(self._awaited))

    def _drained(self, copy: _Copy) -> TransferStep:
        blocks = tuple(self._awaited.pop(index) for index in copy.indices)
        step = TransferStep(fenced=blocks) if copy.is_quarantined else TransferStep(lost=blocks)
        if self._in_flight:
            return step
        self._apply(TransferInput.DRAINED)
        return replace(step, effects=self._sent(self._release()).effects)

    def _quarantine(self, copy: _Copy) -> TransferStep:
        copy.is_quarantined = True
        if self._state is TransferState.DRAINING:
            self._apply(TransferInput.UNFENCED)
        return TransferStep(quarantined=tuple(self._awaited[index] for index in copy.indices))

    def _renew(self, now: float) -> TransferStep:
        self._renew_at = now + self._timings.renew_s
        if not self._is_answered:
            return self._sent(self._subscription())
        self._num_renewals += 1
        self._renewals[self._num_renewals] = now
        missing = tuple(index for index in self._awaited if index not in self._offers)
        renewal = LeaseRenew(
            transfer_id=self.transfer_id,
            producer_epoch=self.source.epoch,
            missing=missing,
            renewal=self._num_renewals,
        )
        return self._sent(renewal, *self._confirmations())

    def _subscription(self) -> Subscribe:
        return Subscribe(
            transfer_id=self.transfer_id,
            request_id=self.request_id,
            producer_epoch=self.source.epoch,
            indices=tuple(self._awaited),
            lease_s=self._timings.lease_s,
        )

    def _confirmations(self) -> list[Confirm]:
        """Ask about the copied blocks of which no answer has come."""
        return [
            Confirm(transfer_id=self.transfer_id, producer_epoch=self.source.epoch, offers=offers, part=part)
            for part, offers in self._unconfirmed.items()
        ]

    def _release(self) -> Release:
        return Release(transfer_id=self.transfer_id, producer_epoch=self.source.epoch)

    def _sent(self, *messages: ToProducer) -> TransferStep:
        return TransferStep(effects=tuple(SendToProducer(source=self.source, message=m) for m in messages))

    def _apply(self, what: TransferInput) -> None:
        self._state = TRANSITIONS[self._state, what]
