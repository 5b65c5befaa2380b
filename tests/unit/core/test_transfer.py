"""The consumer's side: every wanted block ends once, as valid, lost, or quarantined and then fenced."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from baton_core.sessions import peer_messages
from baton_core.sessions.peer_messages import (
    BlockOffer,
    BlocksReady,
    Confirm,
    Confirmed,
    LeaseGone,
    LeaseRenew,
    Release,
    Subscribe,
)
from baton_core.worker.worker_events import AbortPull, BlockPull, Pull, SendToProducer
from baton_decode.core.transfer import PullTimings, Transfer, TransferState, TransferStep
from tests.builders import make_source

WANTED = {0: 10, 1: 11, 2: 12}


def make_transfer(*, by_checksum: bool = False) -> Transfer:
    """A transfer that has just subscribed at time 0."""
    transfer = Transfer(
        "t",
        "r",
        make_source(epoch=3),
        WANTED,
        is_verified_by_checksum=by_checksum,
        next_pull_id=count(1).__next__,
        timings=PullTimings(),
    )
    transfer.start(0.0)
    return transfer


def offer(index: int) -> BlockOffer:
    return BlockOffer(index=index, block_id=index, generation=1)


def ready(*indices: int, renewal: int = 0, epoch: int = 3) -> BlocksReady:
    return BlocksReady(
        transfer_id="t", producer_epoch=epoch, offers=tuple(offer(i) for i in indices), renewal=renewal
    )


def gone(epoch: int = 3) -> LeaseGone:
    return LeaseGone(transfer_id="t", producer_epoch=epoch, reason="it was cancelled")


def confirmed(is_held: bool = True) -> Confirmed:
    return Confirmed(transfer_id="t", producer_epoch=3, is_held=is_held)


RELEASE = Release(transfer_id="t", producer_epoch=3)
NOTHING = TransferStep()


def sent(step: TransferStep) -> list[Any]:
    return [effect.message for effect in step.effects if isinstance(effect, SendToProducer)]


# --- the way it should go ---


def test_a_transfer_asks_for_what_it_lacks() -> None:
    transfer = Transfer(
        "t",
        "r",
        make_source(epoch=3),
        WANTED,
        is_verified_by_checksum=False,
        next_pull_id=count(1).__next__,
        timings=PullTimings(),
    )
    (message,) = sent(transfer.start(5.0))
    assert message == Subscribe(
        transfer_id="t", request_id="r", producer_epoch=3, indices=(0, 1, 2), lease_s=10.0
    )
    assert transfer.next_deadline() == 8.0


def test_ready_blocks_are_copied_into_the_blocks_reserved_for_them() -> None:
    transfer = make_transfer()
    step = transfer.on_message(1.0, ready(0, 2))
    blocks = tuple(BlockPull(remote_block_id=i, local_block_id=10 + i, checksum=None) for i in (0, 2))
    assert step.effects == (Pull(pull_id=1, source=transfer.source, blocks=blocks),)
    assert transfer.on_message(1.0, ready(0, 2)) == NOTHING


def test_without_checksums_blocks_are_readable_only_once_the_holder_confirms() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready(0, 1, 2))
    step = transfer.on_pull_done(2.0, 1, (), "")
    confirm = Confirm(transfer_id="t", producer_epoch=3, offers=(offer(0), offer(1), offer(2)))
    assert (sent(step), step.valid) == ([confirm], ())
    step = transfer.on_message(3.0, confirmed())
    assert (sent(step), step.valid, transfer.state) == ([RELEASE], (10, 11, 12), TransferState.DONE)


def test_a_confirmation_of_many_blocks_is_asked_for_and_answered_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_messages, "MAX_OFFERS", 2)
    transfer = make_transfer()
    transfer.on_message(1.0, ready(0, 1, 2))
    first, second = sent(transfer.on_pull_done(2.0, 1, (), ""))
    assert (first.offers, first.part) == ((offer(0), offer(1)), 0)
    assert (second.offers, second.part) == ((offer(2),), 1)
    assert transfer.on_message(2.5, replace(confirmed(), part=1)) == NOTHING
    assert transfer.on_message(2.6, replace(confirmed(), part=1)) == NOTHING
    assert sent(transfer.on_deadline(3.0))[1:] == [first]
    step = transfer.on_message(3.5, confirmed())
    assert (sent(step), step.valid, transfer.state) == ([RELEASE], (10, 11, 12), TransferState.DONE)


def test_with_checksums_each_copy_is_readable_at_once() -> None:
    transfer = make_transfer(by_checksum=True)
    transfer.on_message(1.0, ready(0))
    transfer.on_message(1.0, ready(1, 2))
    assert transfer.on_pull_done(2.0, 2, (), "") == TransferStep(valid=(11, 12))
    step = transfer.on_pull_done(3.0, 1, (), "")
    assert (sent(step), step.valid, transfer.state) == ([RELEASE], (10,), TransferState.DONE)


def test_a_block_nobody_asked_for_is_not_copied() -> None:
    assert make_transfer().on_message(1.0, ready(7)) == NOTHING


# --- renewals ---


def test_a_lease_is_renewed_every_three_seconds() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready(0))
    assert transfer.next_deadline() == 3.0
    (message,) = sent(transfer.on_deadline(3.0))
    assert message == LeaseRenew(transfer_id="t", producer_epoch=3, missing=(1, 2), renewal=1)
    assert transfer.next_deadline() == 6.0


def test_a_subscription_without_an_answer_is_repeated() -> None:
    (message,) = sent(make_transfer().on_deadline(3.0))
    assert isinstance(message, Subscribe)


def test_a_confirmation_without_an_answer_is_repeated_with_the_renewal() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready(0, 1, 2))
    transfer.on_pull_done(2.0, 1, (), "")
    assert [type(message) for message in sent(transfer.on_deadline(3.0))] == [LeaseRenew, Confirm]


def test_a_lease_counts_from_when_its_renewal_was_sent() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready())
    transfer.on_deadline(3.0)
    transfer.on_message(5.0, ready(renewal=1))
    transfer.on_deadline(6.0)
    for now in (9.0, 12.0):
        transfer.on_message(now - 0.5, ready(renewal=1))
        transfer.on_deadline(now)
    transfer.on_message(12.5, ready(renewal=1))
    assert transfer.next_deadline() == 13.0
    step = transfer.on_deadline(13.0)
    assert (step.lost, transfer.reason) == ((10, 11, 12), "the lease of worker p ran out")


def test_an_answer_to_a_later_renewal_counts_for_the_earlier_ones() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready())
    transfer.on_deadline(3.0)
    transfer.on_deadline(6.0)
    transfer.on_message(7.0, ready(renewal=2))
    for now in (9.0, 12.0, 15.0):
        transfer.on_message(now, ready(renewal=2))
        transfer.on_deadline(now)
    transfer.on_message(15.5, ready(renewal=2))
    assert transfer.next_deadline() == 16.0


# --- giving up ---


def test_silence_for_eight_seconds_is_the_end() -> None:
    transfer = make_transfer()
    transfer.on_deadline(3.0)
    transfer.on_deadline(6.0)
    step = transfer.on_deadline(8.0)
    assert (sent(step), step.lost, transfer.state) == ([RELEASE], (10, 11, 12), TransferState.FAILED)
    assert transfer.reason == "no answer from worker p for 8 s"


def test_a_lease_that_is_gone_ends_the_transfer_at_once() -> None:
    transfer = make_transfer()
    step = transfer.on_message(1.0, gone())
    assert (sent(step), step.lost, transfer.state) == ([RELEASE], (10, 11, 12), TransferState.FAILED)
    assert transfer.reason == "worker p ended the lease: it was cancelled"


def test_a_restarted_holder_ends_the_transfer_at_once() -> None:
    transfer = make_transfer()
    assert transfer.on_message(1.0, gone(epoch=4)).lost == (10, 11, 12)


def test_blocks_of_another_epoch_are_not_copied() -> None:
    transfer = make_transfer()
    assert transfer.on_message(1.0, ready(0, epoch=4)) == NOTHING
    assert transfer.next_deadline() == 3.0


def test_a_lease_that_did_not_hold_makes_every_copy_worthless() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready(0, 1, 2))
    transfer.on_pull_done(2.0, 1, (), "")
    step = transfer.on_message(3.0, confirmed(is_held=False))
    assert (step.valid, step.lost, transfer.state) == ((), (10, 11, 12), TransferState.FAILED)


def test_a_checksum_that_differs_costs_that_block_and_what_has_not_arrived() -> None:
    transfer = make_transfer(by_checksum=True)
    transfer.on_message(1.0, ready(0, 1))
    step = transfer.on_pull_done(2.0, 1, (11,), "")
    assert (step.valid, step.lost, transfer.state) == ((10,), (11, 12), TransferState.FAILED)
    assert transfer.reason == "1 blocks of worker p did not arrive: checksums differ"


@pytest.mark.parametrize("by_checksum", [False, True])
def test_a_copy_that_failed_as_a_whole_makes_none_of_its_blocks_valid(by_checksum: bool) -> None:
    transfer = make_transfer(by_checksum=by_checksum)
    transfer.on_message(1.0, ready(0, 1, 2))
    step = transfer.on_pull_done(2.0, 1, (), "connection reset")
    assert (step.valid, step.lost) == ((), (10, 11, 12))
    assert transfer.reason.endswith("connection reset")


def test_unconfirmed_copies_are_lost_when_another_fails() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready(0))
    transfer.on_message(1.0, ready(1, 2))
    transfer.on_pull_done(2.0, 1, (), "")
    step = transfer.on_pull_done(3.0, 2, (12,), "")
    assert (step.valid, sorted(step.lost)) == ((), [10, 11, 12])


# --- copies in flight ---


def give_up_in_flight(**changes: Any) -> Transfer:
    """Block 10 is being copied when the transfer is given up."""
    transfer = make_transfer(**changes)
    transfer.on_message(1.0, ready(0))
    step = transfer.give_up(2.0, "the request was cancelled")
    assert (step.effects, step.lost, transfer.state) == (
        (AbortPull(pull_id=1),),
        (11, 12),
        TransferState.DRAINING,
    )
    assert transfer.in_flight_blocks == (10,)
    return transfer


def test_a_cancel_drains_the_copy_in_flight_before_its_block_is_free() -> None:
    transfer = give_up_in_flight()
    step = transfer.on_pull_done(3.0, 1, (), "")
    assert (step.valid, step.lost, sent(step)) == ((), (10,), [RELEASE])
    assert transfer.state is TransferState.FAILED


def test_a_fenced_abort_frees_the_block_at_once() -> None:
    transfer = give_up_in_flight()
    step = transfer.on_pull_aborted(3.0, 1, is_fenced=True)
    assert (step.lost, sent(step), transfer.state) == ((10,), [RELEASE], TransferState.FAILED)


def test_an_unfenced_abort_quarantines_the_block_until_the_copy_ends() -> None:
    transfer = give_up_in_flight()
    step = transfer.on_pull_aborted(3.0, 1, is_fenced=False)
    assert (step.quarantined, step.lost, transfer.state) == ((10,), (), TransferState.QUARANTINED)
    assert transfer.next_deadline() is None
    step = transfer.on_pull_done(99.0, 1, (), "")
    assert (step.fenced, step.valid, step.lost) == ((10,), (), ())
    assert (sent(step), transfer.state) == ([RELEASE], TransferState.FAILED)


def test_an_abort_without_an_answer_quarantines_after_eight_seconds() -> None:
    transfer = give_up_in_flight()
    assert transfer.next_deadline() == 10.0
    assert transfer.on_deadline(10.0).quarantined == (10,)
    assert transfer.on_pull_aborted(11.0, 1, is_fenced=False) == NOTHING


def test_a_fence_that_comes_late_ends_the_quarantine() -> None:
    transfer = give_up_in_flight()
    transfer.on_deadline(10.0)
    step = transfer.on_pull_aborted(11.0, 1, is_fenced=True)
    assert (step.fenced, step.lost, transfer.state) == ((10,), (), TransferState.FAILED)


def test_a_copy_that_takes_over_eight_seconds_is_aborted() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready(0))
    for now in (3.0, 6.0, 8.5):
        transfer.on_message(now, ready())
    step = transfer.on_deadline(9.0)
    assert (step.effects, step.lost) == ((AbortPull(pull_id=1),), (11, 12))
    assert transfer.reason == "a copy from worker p took over 8 s"


def test_each_of_two_copies_in_flight_ends_in_its_own_way() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready(0))
    transfer.on_message(1.0, ready(1))
    transfer.give_up(2.0, "the request was cancelled")
    assert transfer.on_pull_aborted(3.0, 1, is_fenced=False).quarantined == (10,)
    assert transfer.on_pull_done(4.0, 2, (), "").lost == (11,)
    assert transfer.state is TransferState.QUARANTINED
    assert transfer.on_pull_done(5.0, 1, (), "").fenced == (10,)
    assert transfer.state is TransferState.FAILED


@pytest.mark.parametrize("message", [ready(1), confirmed(), confirmed(is_held=False), gone()])
def test_a_late_answer_changes_nothing(message: Any) -> None:
    transfer = give_up_in_flight()
    assert transfer.on_message(3.0, message) == NOTHING
    transfer.on_pull_done(4.0, 1, (), "")
    assert transfer.on_message(5.0, message) == NOTHING
    assert transfer.give_up(6.0, "again") == NOTHING
    assert transfer.on_deadline(7.0) == NOTHING
    assert transfer.next_deadline() is None


def test_a_confirmation_that_nobody_asked_for_makes_nothing_valid() -> None:
    transfer = make_transfer()
    transfer.on_message(1.0, ready(0))
    assert transfer.on_message(2.0, confirmed()) == NOTHING
