"""The producer's side: what is kept for a consumer, until when, and what it is told."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.blocks.block_pool import BlockPool, BlockState
from baton_core.sessions.peer_messages import (
    BlockOffer,
    BlocksReady,
    Confirm,
    Confirmed,
    LeaseGone,
    LeaseRenew,
    Release,
    ToProducer,
    encode_peer,
)
from baton_core.worker.worker_events import ChecksumsComputed, ComputeChecksums, SendToConsumer
from baton_kv.peer_socket import MAX_MESSAGE_BYTES
from baton_prefill.core import lease_table
from baton_prefill.core.lease_table import MAX_EARLY_INDICES, MAX_REMEMBERED, LeaseTable, LeaseTimings
from tests.unit.core.producers import EPOCH, PEER, RELEASE, Producer, gone, offer, ready, renew, subscribe


def leased(**changes: Any) -> Producer:
    """A producer with a whole prompt, to which a consumer has subscribed."""
    producer = Producer()
    producer.prefill()
    producer.hear(subscribe(**changes))
    return producer


# --- subscribing ---


def test_a_prompt_of_many_blocks_is_offered_in_messages_that_the_peer_channel_takes() -> None:
    many = 60_000
    pool = BlockPool(many)
    leases = LeaseTable(pool, epoch=EPOCH, has_checksums=True, timings=LeaseTimings())
    leases.open(0.0, "r")
    leases.add_blocks("r", dict(enumerate(pool.allocate(many) or [])))
    request, *_ = leases.on_message(0.0, PEER, subscribe(indices=tuple(range(many))))
    assert isinstance(request, ComputeChecksums)
    computed = ChecksumsComputed(request=request, checksums=(2**64 - 1,) * many)
    effects = leases.on_checksums(computed)
    messages = [effect.message for effect in effects if isinstance(effect, SendToConsumer)]
    assert max(len(encode_peer(message)) for message in messages) < MAX_MESSAGE_BYTES
    offers = [one for message in messages if isinstance(message, BlocksReady) for one in message.offers]
    assert [one.index for one in offers] == list(range(many))


def test_a_confirmation_is_answered_by_its_part() -> None:
    producer = leased()
    question = Confirm(transfer_id="t", producer_epoch=EPOCH, offers=(offer(0),), part=3)
    assert [answer.part for answer in producer.hear(question)] == [3]


def test_a_subscription_before_its_prefill_is_remembered() -> None:
    producer = Producer()
    assert producer.hear(subscribe()) == []
    effects = producer.leases.open(1.0, "r")
    assert effects == [SendToConsumer(peer_id=PEER, message=ready())]
    effects = producer.add_blocks(2)
    assert effects == [SendToConsumer(peer_id=PEER, message=ready(0, 1))]
    assert producer.leases.next_deadline() == 11.0


def test_an_early_subscription_is_forgotten_after_fifteen_seconds() -> None:
    producer = Producer()
    producer.hear(subscribe())
    assert producer.leases.next_deadline() == 15.0
    producer.leases.expire(14.9)
    assert producer.leases.num_early == 1
    producer.leases.expire(15.0)
    assert producer.leases.num_early == 0
    assert producer.leases.open(16.0, "r") == []


def test_a_repeated_early_subscription_waits_anew_and_holds_up_no_other() -> None:
    producer = Producer()
    producer.hear(subscribe(request_id="a"))
    producer.hear(subscribe(request_id="b"), now=1.0)
    producer.hear(subscribe(request_id="a"), now=3.0)
    assert producer.leases.next_deadline() == 16.0
    producer.leases.expire(16.0)
    assert (producer.leases.num_early, producer.leases.next_deadline()) == (1, 18.0)


def test_early_subscriptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_table, "MAX_REMEMBERED", 64)
    producer = Producer()
    for number in range(64 + 5):
        producer.hear(subscribe(request_id=f"{number}"))
    assert producer.leases.num_early == 64


def test_the_blocks_of_early_subscriptions_are_bounded() -> None:
    producer = Producer()
    for number in range(7):
        producer.hear(subscribe(request_id=f"{number}", indices=(0,) * (MAX_EARLY_INDICES // 4)))
    assert producer.leases.num_early == 4
    assert producer.leases.open(1.0, "6") != []


def test_blocks_are_announced_once_as_they_become_ready() -> None:
    producer = Producer()
    producer.prefill(num_ready=1)
    assert producer.hear(subscribe()) == [ready(0)]
    effects = producer.add_blocks(3)
    assert effects == [SendToConsumer(peer_id=PEER, message=ready(1, 2))]


@pytest.mark.parametrize("message", [renew(), RELEASE, Confirm("t", EPOCH, (offer(0),))])
def test_a_lease_is_its_consumers_alone(message: ToProducer) -> None:
    producer = leased()
    answers = producer.hear(message, now=9.0, peer=b"other")
    assert all(answer in (gone("there is no such lease"), confirmed(False)) for answer in answers)
    assert producer.leases.next_deadline() == 10.0
    assert producer.hear(renew(), now=9.5) == [ready(renewal=1)]


def test_only_wanted_blocks_are_announced() -> None:
    producer = Producer()
    producer.prefill()
    assert producer.hear(subscribe(indices=(1, 3))) == [ready(1, 3)]


def test_a_second_puller_takes_over_and_the_first_is_told() -> None:
    producer = leased()
    effects = producer.leases.on_message(1.0, b"other", subscribe(transfer_id="t2"))
    assert effects[0] == SendToConsumer(peer_id=PEER, message=gone("replaced"))
    assert isinstance(effects[1], SendToConsumer)
    assert effects[1].peer_id == b"other"
    assert producer.hear(renew(), now=2.0) == [gone("there is no such lease")]
    assert producer.leases.next_deadline() == 11.0


@pytest.mark.parametrize(
    "message",
    [
        subscribe(epoch=2),
        LeaseRenew(transfer_id="t", producer_epoch=2, missing=(), renewal=1),
        Confirm(transfer_id="t", producer_epoch=2, offers=(offer(0),)),
        Release(transfer_id="t", producer_epoch=2),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_for_another_epoch_is_refused_and_never_acted_on(message: ToProducer) -> None:
    producer = leased()
    answer = LeaseGone(transfer_id="t", producer_epoch=2, reason="epoch 2 of this worker is over")
    assert producer.hear(message, now=5.0) == [answer]
    assert (producer.leases.num_open, producer.leases.next_deadline()) == (1, 10.0)


# --- time ---


def test_blocks_that_nobody_pulls_are_held_for_fifteen_seconds() -> None:
    producer = Producer()
    producer.prefill(now=1.0)
    assert producer.leases.next_deadline() == 16.0
    producer.leases.expire(15.9)
    assert producer.pool.num_used == 4
    producer.leases.expire(16.0)
    assert (producer.pool.num_used, producer.leases.num_open) == (0, 0)
    assert producer.hear(subscribe(), now=17.0) == [gone("nobody pulled it in time")]


def test_an_unfinished_prompt_is_held_as_long_as_it_takes() -> None:
    producer = Producer()
    producer.prefill(num_ready=2)
    assert producer.leases.next_deadline() is None
    producer.leases.expire(1e9)
    assert producer.leases.num_open == 1


def test_silence_ends_a_lease_after_ten_seconds() -> None:
    producer = Producer()
    producer.prefill()
    producer.hear(subscribe(), now=2.0)
    producer.leases.expire(11.9)
    assert producer.pool.num_used == 4
    producer.leases.expire(12.0)
    assert producer.pool.num_used == 0
    assert producer.hear(renew(), now=13.0) == [gone("there is no such lease")]


def test_renewals_every_three_seconds_keep_a_lease() -> None:
    producer = leased()
    for number in range(1, 20):
        now = 3.0 * number
        producer.leases.expire(now)
        assert producer.hear(renew(number), now=now) == [ready(renewal=number)]
    assert producer.leases.next_deadline() == 57.0 + 10.0


def test_a_puller_cannot_ask_for_more_than_the_longest_lease() -> None:
    producer = leased(lease_s=1e9)
    assert producer.leases.next_deadline() == 60.0


def test_a_lost_announcement_is_repeated_when_the_renewal_says_so() -> None:
    producer = leased()
    assert producer.hear(renew(missing=(2,))) == [ready(2, renewal=1)]


def test_a_late_renewal_does_not_turn_the_count_back() -> None:
    producer = leased()
    producer.hear(renew(5))
    assert producer.hear(renew(4)) == [ready(renewal=5)]


# --- ends ---


def test_a_release_lets_go_of_everything() -> None:
    producer = leased()
    assert producer.hear(RELEASE) == []
    assert (producer.pool.num_used, producer.leases.next_deadline()) == (0, None)
    assert producer.hear(RELEASE) == []
    assert producer.hear(subscribe(transfer_id="t2")) == [gone("it was released", "t2")]


def test_after_a_release_during_the_prompt_the_blocks_wait_for_another_puller() -> None:
    producer = Producer()
    producer.prefill(num_ready=2)
    producer.hear(subscribe())
    producer.hear(RELEASE)
    assert (producer.leases.num_open, producer.leases.next_deadline()) == (1, None)
    producer.leases.complete(5.0, "r")
    assert producer.leases.next_deadline() == 20.0
    assert producer.hear(subscribe(transfer_id="t2", indices=(0,)), now=6.0)[0].offers == (offer(0),)


def test_a_cancelled_request_without_a_puller_is_let_go_and_leaves_a_tombstone() -> None:
    producer = Producer()
    producer.prefill()
    assert producer.leases.withdraw("r", "the request was cancelled") == []
    assert producer.pool.num_used == 0
    assert producer.hear(subscribe()) == [gone("the request was cancelled")]
    assert (producer.leases.num_open, producer.leases.num_early) == (0, 0)


def test_what_a_puller_may_be_reading_survives_the_cancel_until_it_lets_go() -> None:
    producer = Producer()
    producer.leases.open(0.0, "r")
    producer.add_blocks(2)
    producer.hear(subscribe(indices=(0,)))
    effects = producer.leases.withdraw("r", "the request was cancelled")
    assert effects == [SendToConsumer(peer_id=PEER, message=gone("the request was cancelled"))]
    producer.pool.release(producer.table)
    states = [producer.pool.state(block_id) for block_id in producer.table]
    assert states == [BlockState.HELD, BlockState.FREE, BlockState.FREE, BlockState.FREE]
    assert producer.hear(renew(), now=1.0) == [gone("there is no such lease")]
    assert producer.hear(subscribe(transfer_id="t2"), now=1.0) == [gone("the request was cancelled", "t2")]
    producer.hear(RELEASE, now=2.0)
    assert (producer.pool.num_used, producer.leases.num_open) == (0, 0)


def test_a_cancelled_request_whose_puller_is_silent_ends_with_its_lease() -> None:
    producer = leased()
    producer.leases.withdraw("r", "the request was cancelled")
    assert producer.leases.next_deadline() == 10.0
    producer.leases.expire(10.0)
    assert producer.pool.num_used == 0


def test_a_request_started_anew_under_its_old_name_lets_go_of_the_old_blocks() -> None:
    producer = leased()
    producer.leases.withdraw("r", "the request was cancelled")
    assert producer.leases.open(1.0, "r") == []
    assert producer.pool.num_used == 0
    assert producer.hear(renew(), now=2.0) == [gone("there is no such lease")]


def test_a_request_started_anew_can_be_pulled_although_it_has_a_tombstone() -> None:
    producer = Producer()
    producer.leases.open(0.0, "r")
    producer.leases.withdraw("r", "the request was cancelled")
    producer.prefill(now=1.0)
    assert producer.hear(subscribe(), now=2.0) == [ready(0, 1, 2, 3)]


def test_tombstones_are_bounded() -> None:
    producer = Producer()
    for number in range(MAX_REMEMBERED + 1):
        producer.leases.open(0.0, f"{number}")
        producer.leases.withdraw(f"{number}", "over")
    assert producer.hear(subscribe(request_id="0")) == []
    assert producer.hear(subscribe(request_id="1")) == [gone("over")]


@pytest.mark.parametrize("method", ["complete", "withdraw", "add_blocks"])
def test_an_unknown_request_changes_nothing(method: str) -> None:
    producer = Producer()
    match method:
        case "complete":
            producer.leases.complete(0.0, "x")
        case "withdraw":
            assert producer.leases.withdraw("x", "over") == []
        case _:
            assert producer.leases.add_blocks("x", {0: producer.table[0]}) == []
    assert (producer.leases.num_open, producer.leases.next_deadline()) == (0, None)


# --- proof that the blocks stayed ---


def confirm(*offers: BlockOffer) -> Confirm:
    return Confirm(transfer_id="t", producer_epoch=EPOCH, offers=offers)


def confirmed(is_held: bool) -> Confirmed:
    return Confirmed(transfer_id="t", producer_epoch=EPOCH, is_held=is_held)


def test_blocks_under_the_lease_are_confirmed_even_after_a_cancel() -> None:
    producer = leased()
    assert producer.hear(confirm(offer(0), offer(3))) == [confirmed(True)]
    producer.leases.withdraw("r", "the request was cancelled")
    assert producer.hear(confirm(offer(0), offer(3))) == [confirmed(True)]


@pytest.mark.parametrize(
    "claim", [offer(0, generation=2), BlockOffer(index=0, block_id=1, generation=1), offer(7)]
)
def test_a_block_that_is_not_the_one_offered_is_not_confirmed(claim: BlockOffer) -> None:
    producer = leased()
    assert producer.hear(confirm(claim)) == [confirmed(False)]


def test_nothing_is_confirmed_once_the_lease_has_expired() -> None:
    producer = leased()
    producer.leases.expire(10.0)
    assert producer.hear(confirm(offer(0)), now=10.0) == [confirmed(False)]


FIRST_CHECKSUM = ChecksumsComputed(
    request=ComputeChecksums(request_id="r", indices=(0,), block_ids=(0,)), checksums=(11,)
)


def test_checksums_come_before_announcements_where_the_backend_needs_them() -> None:
    producer = Producer(has_checksums=True)
    producer.prefill()
    effects = producer.leases.on_message(0.0, PEER, subscribe(indices=(0, 2)))
    request = ComputeChecksums(request_id="r", indices=(0, 2), block_ids=(0, 2))
    assert effects[0] == request
    assert producer.leases.on_message(1.0, PEER, renew(missing=(0, 2)))[0] == SendToConsumer(
        peer_id=PEER, message=ready(renewal=1)
    )
    (effect,) = producer.leases.on_checksums(ChecksumsComputed(request=request, checksums=(11, 22)))
    assert isinstance(effect, SendToConsumer)
    assert isinstance(effect.message, BlocksReady)
    assert effect.message.offers == (offer(0, checksum=11), offer(2, checksum=22))


def test_a_checksum_of_a_block_let_go_meanwhile_is_ignored() -> None:
    producer = Producer(has_checksums=True)
    producer.prefill()
    producer.leases.on_message(0.0, PEER, subscribe())
    producer.leases.withdraw("r", "over")
    assert producer.leases.on_checksums(FIRST_CHECKSUM) == []
    producer.leases.check_invariants()
    assert producer.pool.num_used == 0


def test_a_checksum_is_computed_once_for_two_pullers() -> None:
    producer = Producer(has_checksums=True)
    producer.prefill()
    producer.leases.on_message(0.0, PEER, subscribe(indices=(0,)))
    producer.leases.on_checksums(FIRST_CHECKSUM)
    effects = producer.leases.on_message(1.0, PEER, subscribe(transfer_id="t2", indices=(0,)))
    assert not [effect for effect in effects if isinstance(effect, ComputeChecksums)]


def test_a_subscription_that_arrives_after_its_own_release_takes_no_lease() -> None:
    producer = Producer()
    producer.prefill()
    producer.hear(Release(transfer_id="t", producer_epoch=EPOCH))
    assert producer.hear(subscribe()) == []
    producer.leases.withdraw("r", "the request was cancelled")
    assert producer.leases.num_open == 0
    assert producer.pool.num_available == 8


def test_a_transfer_id_of_another_request_takes_no_lease() -> None:
    producer = leased()
    producer.leases.open(0.0, "other")
    (answer,) = producer.hear(subscribe(request_id="other"))
    assert answer.reason == "another request has this transfer_id"


def test_a_lease_that_is_no_number_ends_at_once() -> None:
    producer = leased(lease_s=float("nan"))
    producer.leases.expire(0.0)
    assert producer.leases.num_open == 0
