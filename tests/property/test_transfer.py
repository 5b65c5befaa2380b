"""The transfer machine under any order of answers: each block ends once, and never while a copy writes it."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton_core.peer_messages import BlockOffer, BlocksReady, Confirm, Confirmed, LeaseGone, ToPuller
from baton_core.transfer import TERMINAL, PullTimings, Transfer, TransferState, TransferStep
from baton_core.worker_events import AbortPull, Pull, SendToHolder
from tests.builders import make_source

EPOCH = 3
NUM_WANTED = 4
INDICES = st.sets(st.integers(0, NUM_WANTED), min_size=1)
EPOCHS = st.sampled_from([EPOCH, EPOCH, EPOCH, EPOCH + 1])


class TransferMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ends: dict[int, str] = {}
        """What became of each local block: valid, lost, quarantined, fenced."""
        self.in_flight: dict[int, set[int]] = {}
        self.aborting: set[int] = set()
        self.is_confirm_asked = False
        self.may_be_valid: set[int] = set()
        """Blocks that arrived whole, by what the connector said."""

    @initialize(by_checksum=st.booleans(), num_wanted=st.integers(1, NUM_WANTED))
    def begin(self, by_checksum: bool, num_wanted: int) -> None:
        self.by_checksum = by_checksum
        self.wanted = {index: 10 + index for index in range(num_wanted)}
        self.transfer = Transfer(
            "t",
            "r",
            make_source(epoch=EPOCH),
            self.wanted,
            is_verified_by_checksum=by_checksum,
            next_pull_id=count(1).__next__,
            timings=PullTimings(),
        )
        self._take(self.transfer.start(self.now))

    # --- the holder ---

    @rule(indices=INDICES, epoch=EPOCHS, renewal=st.integers(0, 3))
    def ready(self, indices: set[int], epoch: int, renewal: int) -> None:
        offers = tuple(BlockOffer(index=i, block_id=i, generation=1) for i in sorted(indices))
        message = BlocksReady(transfer_id="t", holder_epoch=epoch, offers=offers, renewal=renewal)
        self._hear(message, is_heard=epoch == EPOCH)

    @rule(is_held=st.booleans(), epoch=EPOCHS)
    def confirmed(self, is_held: bool, epoch: int) -> None:
        """An answer that was asked for, or a late one."""
        message = Confirmed(transfer_id="t", holder_epoch=epoch, is_held=is_held)
        self._hear(message, is_heard=epoch == EPOCH)

    @rule(epoch=EPOCHS)
    def gone(self, epoch: int) -> None:
        self._hear(LeaseGone(transfer_id="t", holder_epoch=epoch, reason="over"), is_heard=True)

    # --- the connector ---

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), is_error=st.booleans())
    def pull_done(self, data: Any, is_error: bool) -> None:
        pull_id = data.draw(st.sampled_from(sorted(self.in_flight)))
        blocks = self.in_flight[pull_id]
        failed = data.draw(st.sets(st.sampled_from(sorted(blocks))))
        self._end_pull(pull_id, failed, "connection reset" if is_error else "")

    @precondition(lambda self: self.aborting)
    @rule(data=st.data(), is_fenced=st.booleans())
    def pull_aborted(self, data: Any, is_fenced: bool) -> None:
        pull_id = data.draw(st.sampled_from(sorted(self.aborting)))
        self.aborting.remove(pull_id)
        quarantined = {block for block in self.in_flight[pull_id] if self.ends.get(block) == "quarantined"}
        if is_fenced and not quarantined:
            del self.in_flight[pull_id]
        self._take(self.transfer.on_pull_aborted(self.now, pull_id, is_fenced=is_fenced))

    # --- time and cancels ---

    @rule()
    def give_up(self) -> None:
        self._take(self.transfer.give_up(self.now, "the request was cancelled"))
        assert self.transfer.state not in (TransferState.PULLING, TransferState.CONFIRMING)

    @rule(elapsed_s=st.sampled_from([0.1, 2.0, 5.0]))
    def let_time_pass(self, elapsed_s: float) -> None:
        end = self.now + elapsed_s
        while (deadline := self.transfer.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self._take(self.transfer.on_deadline(self.now))
        self.now = end

    # --- what must hold ---

    @invariant()
    def every_block_is_awaited_or_settled(self) -> None:
        if not hasattr(self, "transfer"):
            return
        awaited = set(self.transfer.awaited_blocks)
        settled = {block for block, end in self.ends.items() if end != "quarantined"}
        assert awaited | settled == set(self.wanted.values())
        assert not awaited & settled

    @invariant()
    def it_is_over_when_all_blocks_are_settled(self) -> None:
        if hasattr(self, "transfer"):
            assert (self.transfer.state in TERMINAL) == (not self.transfer.awaited_blocks)
            all_valid = set(self.ends.values()) == {"valid"} and len(self.ends) == len(self.wanted)
            assert (self.transfer.state is TransferState.DONE) == all_valid
            assert bool(self.transfer.reason) == (
                self.transfer.state
                not in (TransferState.PULLING, TransferState.CONFIRMING, TransferState.DONE)
            )

    def teardown(self) -> None:
        """Time alone ends it, unless a copy cannot be stopped; then the end of the copy does."""
        if not hasattr(self, "transfer"):
            return
        latest = self.now + 16.0
        for _ in range(30):
            if (deadline := self.transfer.next_deadline()) is None:
                break
            assert deadline <= latest
            self.now = max(self.now, deadline)
            self._take(self.transfer.on_deadline(self.now))
        assert self.transfer.next_deadline() is None
        assert self.transfer.state in (*TERMINAL, TransferState.QUARANTINED)
        for pull_id in list(self.in_flight):
            self._end_pull(pull_id, set(), "")
        assert self.transfer.state in TERMINAL
        assert set(self.ends) == set(self.wanted.values())
        assert "quarantined" not in self.ends.values()

    # --- parts ---

    def _hear(self, message: ToPuller, *, is_heard: bool) -> None:
        before = (self.transfer.state, self.transfer.next_deadline())
        step = self.transfer.on_message(self.now, message)
        if not is_heard:
            assert step == TransferStep()
            assert (self.transfer.state, self.transfer.next_deadline()) == before
        if not self.by_checksum and step.valid:
            assert isinstance(message, Confirmed)
            assert message.is_held
            assert self.is_confirm_asked
        self._take(step)

    def _end_pull(self, pull_id: int, failed: set[int], error: str) -> None:
        blocks = self.in_flight.pop(pull_id)
        self.aborting.discard(pull_id)
        if failed or not error:
            self.may_be_valid |= blocks - failed
        step = self.transfer.on_pull_done(self.now, pull_id, sorted(failed), error)
        assert self.by_checksum or not step.valid
        self._take(step)

    def _take(self, step: TransferStep) -> None:
        writing = {block for blocks in self.in_flight.values() for block in blocks}
        for name in ("valid", "lost", "quarantined", "fenced"):
            for block in getattr(step, name):
                expected = "quarantined" if name == "fenced" else None
                assert self.ends.get(block) == expected, f"{block} was {self.ends.get(block)}, now {name}"
                assert (block in writing) == (name == "quarantined"), f"{block} is {name} during a copy"
                assert name != "valid" or block in self.may_be_valid
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
                case SendToHolder(message=Confirm()):
                    self.is_confirm_asked = True


TransferMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestTransfer = TransferMachine.TestCase
