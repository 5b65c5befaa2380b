"""The holder's side: what is kept for a puller, until when, and what it is told."""

from __future__ import annotations

import pytest

from baton_core.blocks.block_pool import BlockState
from baton_core.blocks.lease_table import MAX_REMEMBERED
from baton_core.blocks.peer_messages import (
    BlockOffer,
    BlocksReady,
    Confirm,
    Confirmed,
    LeaseRenew,
    Release,
    ToHolder,
)
from baton_core.worker.worker_events import Seal, Sealed, SendToPuller
from tests.unit.core.holders import EPOCH, PEER, RELEASE, Holder, gone, offer, ready, renew, subscribe

# --- subscribing ---


def test_a_subscription_before_its_prefill_is_remembered() -> None:
    holder = Holder()
    assert holder.hear(subscribe()) == []
    effects = holder.leases.open(1.0, "r")
    assert effects == [SendToPuller(peer_id=PEER, message=ready())]
    effects = holder.add_blocks(2)
    assert effects == [SendToPuller(peer_id=PEER, message=ready(0, 1))]
    assert holder.leases.next_deadline() == 11.0


def test_an_early_subscription_is_forgotten_after_fifteen_seconds() -> None:
    holder = Holder()
    holder.hear(subscribe())
    assert holder.leases.next_deadline() == 15.0
    holder.leases.expire(14.9)
    assert holder.leases.num_early == 1
    holder.leases.expire(15.0)
    assert holder.leases.num_early == 0
    assert holder.leases.open(16.0, "r") == []


def test_a_repeated_early_subscription_waits_anew_and_holds_up_no_other() -> None:
    holder = Holder()
    holder.hear(subscribe(request_id="a"))
    holder.hear(subscribe(request_id="b"), now=1.0)
    holder.hear(subscribe(request_id="a"), now=3.0)
    assert holder.leases.next_deadline() == 16.0
    holder.leases.expire(16.0)
    assert (holder.leases.num_early, holder.leases.next_deadline()) == (1, 18.0)


def test_early_subscriptions_are_bounded() -> None:
    holder = Holder()
    for number in range(MAX_REMEMBERED + 5):
        holder.hear(subscribe(request_id=f"{number}"))
    assert holder.leases.num_early == MAX_REMEMBERED


def test_blocks_are_announced_once_as_they_become_ready() -> None:
    holder = Holder()
    holder.prefill(num_ready=1)
    assert holder.hear(subscribe()) == [ready(0)]
    effects = holder.add_blocks(3)
    assert effects == [SendToPuller(peer_id=PEER, message=ready(1, 2))]


def test_only_wanted_blocks_are_announced() -> None:
    holder = Holder()
    holder.prefill()
    assert holder.hear(subscribe(indices=(1, 3))) == [ready(1, 3)]


def test_a_second_puller_takes_over_and_the_first_is_told() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    effects = holder.leases.on_message(1.0, b"other", subscribe(transfer_id="t2"))
    assert effects[0] == SendToPuller(peer_id=PEER, message=gone("replaced"))
    assert isinstance(effects[1], SendToPuller)
    assert effects[1].peer_id == b"other"
    assert holder.hear(renew(), now=2.0) == [gone("there is no such lease")]
    assert holder.leases.next_deadline() == 11.0


@pytest.mark.parametrize(
    "message",
    [
        subscribe(epoch=2),
        LeaseRenew(transfer_id="t", holder_epoch=2, missing=(), renewal=1),
        Confirm(transfer_id="t", holder_epoch=2, offers=(offer(0),)),
        Release(transfer_id="t", holder_epoch=2),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_for_another_epoch_is_refused_and_never_acted_on(message: ToHolder) -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    assert holder.hear(message, now=5.0) == [gone("epoch 2 of this worker is over")]
    assert (holder.leases.num_open, holder.leases.next_deadline()) == (1, 10.0)


# --- time ---


def test_blocks_that_nobody_pulls_are_held_for_fifteen_seconds() -> None:
    holder = Holder()
    holder.prefill(now=1.0)
    assert holder.leases.next_deadline() == 16.0
    holder.leases.expire(15.9)
    assert holder.pool.num_used == 4
    holder.leases.expire(16.0)
    assert (holder.pool.num_used, holder.leases.num_open) == (0, 0)
    assert holder.hear(subscribe(), now=17.0) == [gone("nobody pulled it in time")]


def test_an_unfinished_prompt_is_held_as_long_as_it_takes() -> None:
    holder = Holder()
    holder.prefill(num_ready=2)
    assert holder.leases.next_deadline() is None
    holder.leases.expire(1e9)
    assert holder.leases.num_open == 1


def test_silence_ends_a_lease_after_ten_seconds() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe(), now=2.0)
    holder.leases.expire(11.9)
    assert holder.pool.num_used == 4
    holder.leases.expire(12.0)
    assert holder.pool.num_used == 0
    assert holder.hear(renew(), now=13.0) == [gone("there is no such lease")]


def test_renewals_every_three_seconds_keep_a_lease() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    for number in range(1, 20):
        now = 3.0 * number
        holder.leases.expire(now)
        assert holder.hear(renew(number), now=now) == [ready(renewal=number)]
    assert holder.leases.next_deadline() == 57.0 + 10.0


def test_a_puller_cannot_ask_for_more_than_the_longest_lease() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe(lease_s=1e9))
    assert holder.leases.next_deadline() == 60.0


def test_a_lost_announcement_is_repeated_when_the_renewal_says_so() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    assert holder.hear(renew(missing=(2,))) == [ready(2, renewal=1)]


def test_a_late_renewal_does_not_turn_the_count_back() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    holder.hear(renew(5))
    assert holder.hear(renew(4)) == [ready(renewal=5)]


# --- ends ---


def test_a_release_lets_go_of_everything() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    assert holder.hear(RELEASE) == []
    assert (holder.pool.num_used, holder.leases.next_deadline()) == (0, None)
    assert holder.hear(RELEASE) == []
    assert holder.hear(subscribe(transfer_id="t2")) == [gone("it was released", "t2")]


def test_after_a_release_during_the_prompt_the_blocks_wait_for_another_puller() -> None:
    holder = Holder()
    holder.prefill(num_ready=2)
    holder.hear(subscribe())
    holder.hear(RELEASE)
    assert (holder.leases.num_open, holder.leases.next_deadline()) == (1, None)
    holder.leases.complete(5.0, "r")
    assert holder.leases.next_deadline() == 20.0
    assert holder.hear(subscribe(transfer_id="t2", indices=(0,)), now=6.0)[0].offers == (offer(0),)


def test_a_cancelled_request_without_a_puller_is_let_go_and_leaves_a_tombstone() -> None:
    holder = Holder()
    holder.prefill()
    assert holder.leases.withdraw("r", "the request was cancelled") == []
    assert holder.pool.num_used == 0
    assert holder.hear(subscribe()) == [gone("the request was cancelled")]
    assert (holder.leases.num_open, holder.leases.num_early) == (0, 0)


def test_what_a_puller_may_be_reading_survives_the_cancel_until_it_lets_go() -> None:
    holder = Holder()
    holder.leases.open(0.0, "r")
    holder.add_blocks(2)
    holder.hear(subscribe(indices=(0,)))
    effects = holder.leases.withdraw("r", "the request was cancelled")
    assert effects == [SendToPuller(peer_id=PEER, message=gone("the request was cancelled"))]
    holder.pool.release(holder.table)
    states = [holder.pool.state(block_id) for block_id in holder.table]
    assert states == [BlockState.HELD, BlockState.FREE, BlockState.FREE, BlockState.FREE]
    assert holder.hear(renew(), now=1.0) == [gone("there is no such lease")]
    assert holder.hear(subscribe(transfer_id="t2"), now=1.0) == [gone("the request was cancelled", "t2")]
    holder.hear(RELEASE, now=2.0)
    assert (holder.pool.num_used, holder.leases.num_open) == (0, 0)


def test_a_cancelled_request_whose_puller_is_silent_ends_with_its_lease() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    holder.leases.withdraw("r", "the request was cancelled")
    assert holder.leases.next_deadline() == 10.0
    holder.leases.expire(10.0)
    assert holder.pool.num_used == 0


def test_a_request_started_anew_under_its_old_name_lets_go_of_the_old_blocks() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    holder.leases.withdraw("r", "the request was cancelled")
    assert holder.leases.open(1.0, "r") == []
    assert holder.pool.num_used == 0
    assert holder.hear(renew(), now=2.0) == [gone("there is no such lease")]


def test_a_request_started_anew_can_be_pulled_although_it_has_a_tombstone() -> None:
    holder = Holder()
    holder.leases.open(0.0, "r")
    holder.leases.withdraw("r", "the request was cancelled")
    holder.prefill(now=1.0)
    assert holder.hear(subscribe(), now=2.0) == [ready(0, 1, 2, 3)]


def test_tombstones_are_bounded() -> None:
    holder = Holder()
    for number in range(MAX_REMEMBERED + 1):
        holder.leases.open(0.0, f"{number}")
        holder.leases.withdraw(f"{number}", "over")
    assert holder.hear(subscribe(request_id="0")) == []
    assert holder.hear(subscribe(request_id="1")) == [gone("over")]


@pytest.mark.parametrize("method", ["complete", "withdraw", "add_blocks"])
def test_an_unknown_request_changes_nothing(method: str) -> None:
    holder = Holder()
    match method:
        case "complete":
            holder.leases.complete(0.0, "x")
        case "withdraw":
            assert holder.leases.withdraw("x", "over") == []
        case _:
            assert holder.leases.add_blocks("x", {0: holder.table[0]}) == []
    assert (holder.leases.num_open, holder.leases.next_deadline()) == (0, None)


# --- proof that the blocks stayed ---


def confirm(*offers: BlockOffer) -> Confirm:
    return Confirm(transfer_id="t", holder_epoch=EPOCH, offers=offers)


def confirmed(is_held: bool) -> Confirmed:
    return Confirmed(transfer_id="t", holder_epoch=EPOCH, is_held=is_held)


def test_blocks_under_the_lease_are_confirmed_even_after_a_cancel() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    assert holder.hear(confirm(offer(0), offer(3))) == [confirmed(True)]
    holder.leases.withdraw("r", "the request was cancelled")
    assert holder.hear(confirm(offer(0), offer(3))) == [confirmed(True)]


@pytest.mark.parametrize(
    "claim", [offer(0, generation=2), BlockOffer(index=0, block_id=1, generation=1), offer(7)]
)
def test_a_block_that_is_not_the_one_offered_is_not_confirmed(claim: BlockOffer) -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    assert holder.hear(confirm(claim)) == [confirmed(False)]


def test_nothing_is_confirmed_once_the_lease_has_expired() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    holder.leases.expire(10.0)
    assert holder.hear(confirm(offer(0)), now=10.0) == [confirmed(False)]


def test_checksums_come_before_announcements_where_the_backend_needs_them() -> None:
    holder = Holder(needs_seal=True)
    holder.prefill()
    effects = holder.leases.on_message(0.0, PEER, subscribe(indices=(0, 2)))
    assert effects[0] == Seal(request_id="r", indices=(0, 2), block_ids=(0, 2))
    assert holder.leases.on_message(1.0, PEER, renew(missing=(0, 2)))[0] == SendToPuller(
        peer_id=PEER, message=ready(renewal=1)
    )
    sealed = Sealed(request_id="r", indices=(0, 2), block_ids=(0, 2), checksums=(11, 22))
    (effect,) = holder.leases.on_sealed(sealed)
    assert isinstance(effect, SendToPuller)
    assert isinstance(effect.message, BlocksReady)
    assert effect.message.offers == (offer(0, checksum=11), offer(2, checksum=22))


def test_a_checksum_of_a_block_let_go_meanwhile_is_ignored() -> None:
    holder = Holder(needs_seal=True)
    holder.prefill()
    holder.leases.on_message(0.0, PEER, subscribe())
    holder.leases.withdraw("r", "over")
    sealed = Sealed(request_id="r", indices=(0,), block_ids=(0,), checksums=(11,))
    assert holder.leases.on_sealed(sealed) == []
    holder.leases.check_invariants()
    assert holder.pool.num_used == 0


def test_a_checksum_is_computed_once_for_two_pullers() -> None:
    holder = Holder(needs_seal=True)
    holder.prefill()
    holder.leases.on_message(0.0, PEER, subscribe(indices=(0,)))
    holder.leases.on_sealed(Sealed(request_id="r", indices=(0,), block_ids=(0,), checksums=(11,)))
    effects = holder.leases.on_message(1.0, PEER, subscribe(transfer_id="t2", indices=(0,)))
    assert not [effect for effect in effects if isinstance(effect, Seal)]


def test_a_subscription_that_arrives_after_its_own_release_takes_no_lease() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(Release(transfer_id="t", holder_epoch=EPOCH))
    assert holder.hear(subscribe()) == []
    holder.leases.withdraw("r", "the request was cancelled")
    assert holder.leases.num_open == 0
    assert holder.pool.num_available == 8


def test_a_transfer_id_of_another_request_takes_no_lease() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe())
    holder.leases.open(0.0, "other")
    (answer,) = holder.hear(subscribe(request_id="other"))
    assert answer.reason == "another request has this transfer_id"


def test_a_lease_that_is_no_number_ends_at_once() -> None:
    holder = Holder()
    holder.prefill()
    holder.hear(subscribe(lease_s=float("nan")))
    holder.leases.expire(0.0)
    assert holder.leases.num_open == 0
