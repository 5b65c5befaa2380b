"""The transfer machine under any order of answers: each block ends once, and never while a copy writes it."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.sessions.peer_messages import (
    BlockOffer,
    BlocksReady,
    Confirm,
    Confirmed,
    LeaseGone,
    ToConsumer,
)
from baton_core.worker.worker_events import AbortPull, Pull, SendToProducer
from baton_decode.core.transfer import TERMINAL, PullTimings, Transfer, TransferState, TransferStep
from tests.builders import make_source

EPOCH = 3
LIVE = (TransferState.PULLING, TransferState.CONFIRMING)
ACTIONS = {
    "ready": 6,
    "finish_pull": 5,
    "answer_abort": 3,
    "confirm": 2,
    "let_time_pass": 3,
    "end_lease": 0.2,
    "give_up": 0.3,
}
"""Events that may happen next, by weight."""


class Play:
    """One transfer, its producer and its connector; `ends` says what became of each local block."""

    def __init__(self, seed: int, *, by_checksum: bool) -> None:
        self.random = Random(seed)
        self.by_checksum = by_checksum
        self.now = 0.0
        self.wanted = {index: 10 + index for index in range(self.random.randint(1, 4))}
        self.ends: dict[int, str] = {}
        self.in_flight: dict[int, set[int]] = {}
        self.aborting: set[int] = set()
        self.is_confirm_asked = False
        self.arrived: set[int] = set()
        self.transfer = Transfer(
            "t",
            "r",
            make_source(epoch=EPOCH),
            self.wanted,
            is_verified_by_checksum=by_checksum,
            next_pull_id=count(1).__next__,
            timings=PullTimings(),
        )
        self.take(self.transfer.start(self.now))

    def run(self, num_actions: int) -> None:
        for _ in range(num_actions):
            (action,) = self.random.choices(list(ACTIONS), list(ACTIONS.values()))
            getattr(self, action)()
            self.check()

    # --- the producer ---

    def ready(self) -> None:
        indices = self.random.sample(range(5), self.random.randint(0, 3))
        offers = tuple(BlockOffer(index=index, block_id=index, generation=1) for index in indices)
        renewal = self.random.randint(0, 3)
        self.hear(BlocksReady(transfer_id="t", producer_epoch=self.epoch(), offers=offers, renewal=renewal))

    def confirm(self) -> None:
        """An answer that was asked for, or a late one."""
        is_held = self.random.random() < 0.8
        if self.is_confirm_asked or self.random.random() < 0.1:
            self.hear(Confirmed(transfer_id="t", producer_epoch=self.epoch(), is_held=is_held))

    def end_lease(self) -> None:
        self.hear(LeaseGone(transfer_id="t", producer_epoch=self.epoch(), reason="it is over"))

    # --- the connector ---

    def finish_pull(self) -> None:
        if self.in_flight:
            pull_id = self.random.choice(sorted(self.in_flight))
            blocks = sorted(self.in_flight[pull_id])
            failed = self.random.sample(blocks, self.random.randint(0, len(blocks)))
            is_whole = self.random.random() < 0.8
            self.end_pull(
                pull_id, set() if is_whole else set(failed), self.random.choice(["", "", "", "reset"])
            )

    def answer_abort(self) -> None:
        if self.aborting:
            pull_id = self.random.choice(sorted(self.aborting))
            self.aborting.remove(pull_id)
            is_fenced = self.random.random() < 0.5
            if is_fenced:
                del self.in_flight[pull_id]
            self.take(self.transfer.on_pull_aborted(self.now, pull_id, is_fenced=is_fenced))

    # --- time and cancels ---

    def let_time_pass(self) -> None:
        end = self.now + self.random.choice([0.1, 0.1, 0.2, 0.5, 0.5, 1.0, 2.0, 9.0])
        while (deadline := self.transfer.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.take(self.transfer.on_deadline(self.now))
        self.now = end

    def give_up(self) -> None:
        self.take(self.transfer.give_up(self.now, "the request was cancelled"))
        assert self.transfer.state not in LIVE

    # --- parts ---

    def epoch(self) -> int:
        return EPOCH + (self.random.random() < 0.1)

    def hear(self, message: ToConsumer) -> None:
        before = (self.transfer.state, self.transfer.next_deadline())
        step = self.transfer.on_message(self.now, message)
        if message.producer_epoch != EPOCH and not isinstance(message, LeaseGone):
            assert step == TransferStep()
            assert (self.transfer.state, self.transfer.next_deadline()) == before
        if not self.by_checksum and step.valid:
            assert isinstance(message, Confirmed)
            assert message.is_held
            assert self.is_confirm_asked
        self.take(step)

    def end_pull(self, pull_id: int, failed: set[int], error: str) -> None:
        blocks = self.in_flight.pop(pull_id)
        self.aborting.discard(pull_id)
        if failed or not error:
            self.arrived |= blocks - failed
        step = self.transfer.on_pull_done(self.now, pull_id, sorted(failed), error)
        assert self.by_checksum or not step.valid
        self.take(step)

    def take(self, step: TransferStep) -> None:
        writing = {block for blocks in self.in_flight.values() for block in blocks}
        for name in ("valid", "lost", "quarantined", "fenced"):
            for block in getattr(step, name):
                expected = "quarantined" if name == "fenced" else None
                assert self.ends.get(block) == expected, f"{block} was {self.ends.get(block)}, now {name}"
                assert (block in writing) == (name == "quarantined"), f"{block} is {name} during a copy"
                assert name != "valid" or block in self.arrived
                self.ends[block] = name
        for effect in step.effects:
            match effect:
                case Pull(pull_id=pull_id, blocks=pulled):
                    blocks = {block.local_block_id for block in pulled}
                    assert not blocks & (writing | set(self.ends))
                    self.in_flight[pull_id] = blocks
                case AbortPull(pull_id=pull_id):
                    assert pull_id in self.in_flight
                    self.aborting.add(pull_id)
                case SendToProducer(message=Confirm()):
                    self.is_confirm_asked = True

    def check(self) -> None:
        """Every block is awaited or settled, and the transfer is over when all are settled."""
        awaited, state = set(self.transfer.in_flight_blocks), self.transfer.state
        settled = {block for block, end in self.ends.items() if end != "quarantined"}
        assert awaited | settled == set(self.wanted.values())
        assert not awaited & settled
        assert (state in TERMINAL) == (not awaited)
        assert (state is TransferState.DONE) == all(
            self.ends.get(block) == "valid" for block in self.wanted.values()
        )
        assert bool(self.transfer.reason) == (state not in (*LIVE, TransferState.DONE))

    def finish(self) -> None:
        """Time alone ends it, unless a copy cannot be stopped; then the end of the copy does."""
        latest = self.now + 16.0
        while (deadline := self.transfer.next_deadline()) is not None:
            assert deadline <= latest
            self.now = max(self.now, deadline)
            self.take(self.transfer.on_deadline(self.now))
            self.check()
        assert self.transfer.state in (*TERMINAL, TransferState.QUARANTINED)
        for pull_id in list(self.in_flight):
            self.end_pull(pull_id, set(), "")
            self.check()
        assert self.transfer.state in TERMINAL


@pytest.mark.parametrize("by_checksum", [False, True], ids=["confirm", "checksum"])
@settings(deadline=None, max_examples=250)
@given(seed=st.integers(0, 2**32), num_actions=st.integers(5, 60))
def test_each_block_ends_once_and_every_transfer_ends(by_checksum: bool, seed: int, num_actions: int) -> None:
    play = Play(seed, by_checksum=by_checksum)
    play.run(num_actions)
    play.finish()
