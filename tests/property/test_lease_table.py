"""The lease table under any order of events of a worker and its consumers: no block leaks or slips away."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.blocks.block_pool import BlockPool, BlockState
from baton_core.sessions.peer_messages import (
    BlockOffer,
    BlocksReady,
    Confirm,
    Confirmed,
    LeaseGone,
    LeaseRenew,
    Release,
    Subscribe,
    ToProducer,
)
from baton_core.worker.worker_events import ChecksumsComputed, ComputeChecksums, SendToConsumer, WorkerEffect
from baton_prefill.core.lease_table import LeaseTable, LeaseTimings

NUM_BLOCKS = 12
EPOCH = 3
LEASE_S = 10.0
REQUESTS = ("a", "b", "c")
TRANSFERS = ("a1", "a2", "b1", "b2", "c1")
"""Named by their request."""
ACTIONS = {
    "open": 4,
    "compute": 5,
    "end": 2,
    "withdraw": 0.5,
    "compute_checksums": 4,
    "others_use_blocks": 2,
    "let_time_pass": 3,
    "subscribe": 5,
    "renew": 4,
    "confirm": 3,
    "release": 1,
}
"""Events that may happen next, by weight. Messages get lost by not being sent."""


@dataclass
class Consumer:
    """A consumer's rights: the blocks that it was offered, until when it may read them."""

    request_id: str
    lease_until: float = 0.0
    offers: dict[int, BlockOffer] = field(default_factory=dict)


class Play:
    """One worker's table and pool, and the consumers' books."""

    def __init__(self, seed: int, *, has_checksums: bool) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.pool = BlockPool(NUM_BLOCKS)
        self.leases = LeaseTable(self.pool, epoch=EPOCH, has_checksums=has_checksums, timings=LeaseTimings())
        self.prefills: dict[str, list[int]] = {}
        """Requests whose prompt is being computed, with their block tables."""
        self.consumers: dict[str, Consumer] = {}
        self.foreign: list[int] = []
        self.checksum_requests: list[ComputeChecksums] = []

    def run(self, num_actions: int) -> None:
        for _ in range(num_actions):
            (action,) = self.random.choices(list(ACTIONS), list(ACTIONS.values()))
            getattr(self, action)()
            self.check()

    # --- the worker ---

    def open(self) -> None:
        request_id = self.random.choice(REQUESTS)
        if request_id in self.prefills or (table := self.pool.allocate(self.random.randint(1, 4))) is None:
            return
        self.prefills[request_id] = table
        self.consumers = {
            name: consumer
            for name, consumer in self.consumers.items()
            if consumer.request_id != request_id or not consumer.offers
        }
        self.take(self.leases.open(self.now, request_id))

    def compute(self) -> None:
        if self.prefills:
            request_id = self.random.choice(sorted(self.prefills))
            table = self.prefills[request_id]
            self.take(
                self.leases.add_blocks(
                    request_id, dict(enumerate(table[: self.random.randint(1, len(table))]))
                )
            )

    def end(self) -> None:
        if self.prefills:
            is_cancelled = self.random.random() < 0.3
            self.end_prefill(self.random.choice(sorted(self.prefills)), is_cancelled=is_cancelled)

    def withdraw(self) -> None:
        """A cancel that comes after the prompt was computed, or for nothing at all."""
        request_id = self.random.choice(REQUESTS)
        if request_id not in self.prefills:
            self.take(self.leases.withdraw(request_id, "the request was cancelled"))

    def compute_checksums(self) -> None:
        if self.checksum_requests:
            request = self.checksum_requests.pop(self.random.randrange(len(self.checksum_requests)))
            computed = ChecksumsComputed(request=request, checksums=request.block_ids)
            self.take(self.leases.on_checksums(computed))

    def others_use_blocks(self) -> None:
        """Whatever is free gets written by somebody else."""
        self.pool.release(self.foreign)
        count = self.random.randint(0, self.pool.num_available)
        self.foreign = self.pool.allocate(count) or []

    def let_time_pass(self) -> None:
        self.now += self.random.choice([0.5, 1.0, 3.0, 8.0])
        self.leases.expire(self.now)
        deadline = self.leases.next_deadline()
        assert deadline is None or deadline > self.now

    # --- consumers ---

    def subscribe(self) -> None:
        transfer_id = self.random.choice(TRANSFERS)
        self.consumers.setdefault(transfer_id, Consumer(request_id=transfer_id[0]))
        message = Subscribe(
            transfer_id=transfer_id,
            request_id=transfer_id[0],
            producer_epoch=self.epoch(),
            indices=tuple(self.random.sample(range(4), self.random.randint(1, 4))),
            lease_s=LEASE_S,
        )
        self.say(transfer_id, message)

    def renew(self) -> None:
        transfer_id = self.random.choice(TRANSFERS)
        missing = tuple(self.random.sample(range(4), self.random.randint(0, 2)))
        message = LeaseRenew(transfer_id=transfer_id, producer_epoch=self.epoch(), missing=missing, renewal=1)
        self.say(transfer_id, message)

    def confirm(self) -> None:
        names = sorted(name for name, consumer in self.consumers.items() if consumer.offers)
        if not names:
            return
        transfer_id = self.random.choice(names)
        consumer = self.consumers[transfer_id]
        message = Confirm(
            transfer_id=transfer_id, producer_epoch=EPOCH, offers=tuple(consumer.offers.values())
        )
        (effect,) = self.leases.on_message(self.now, transfer_id.encode(), message)
        assert isinstance(effect, SendToConsumer)
        assert isinstance(effect.message, Confirmed)
        assert effect.message.is_held or consumer.lease_until <= self.now
        if effect.message.is_held:
            self.assert_kept(consumer)

    def release(self) -> None:
        transfer_id = self.random.choice(TRANSFERS)
        message = Release(transfer_id=transfer_id, producer_epoch=self.epoch())
        self.say(transfer_id, message)
        if message.producer_epoch == EPOCH:
            self.consumers.pop(transfer_id, None)

    # --- what must hold ---

    def check(self) -> None:
        """Parts agree, and what is under a lease stays."""
        self.pool.check_invariants()
        self.leases.check_invariants()
        for consumer in self.consumers.values():
            if consumer.lease_until > self.now:
                self.assert_kept(consumer)

    def finish(self) -> None:
        """When all requests are over and all consumers silent, time gives every block back."""
        for request_id in sorted(self.prefills):
            self.end_prefill(request_id, is_cancelled=False)
        self.pool.release(self.foreign)
        self.leases.expire(self.now + 1e6)
        assert (self.leases.num_open, self.leases.num_early) == (0, 0)
        assert self.leases.next_deadline() is None
        assert self.pool.num_used == 0

    # --- parts ---

    def epoch(self) -> int:
        return EPOCH - (self.random.random() < 0.1)

    def end_prefill(self, request_id: str, *, is_cancelled: bool) -> None:
        table = self.prefills.pop(request_id)
        if is_cancelled:
            self.take(self.leases.withdraw(request_id, "the request was cancelled"))
        else:
            self.take(self.leases.add_blocks(request_id, dict(enumerate(table))))
            self.leases.complete(self.now, request_id)
        self.pool.release(table)

    def say(self, transfer_id: str, message: ToProducer) -> None:
        before = self.books()
        effects = self.leases.on_message(self.now, transfer_id.encode(), message)
        if message.producer_epoch == EPOCH:
            self.take(effects, answered=transfer_id)
            return
        (effect,) = effects
        assert isinstance(effect, SendToConsumer)
        assert isinstance(effect.message, LeaseGone)
        assert self.books() == before

    def books(self) -> tuple[int, int, float | None, int]:
        leases = self.leases
        return (leases.num_open, leases.num_early, leases.next_deadline(), self.pool.num_used)

    def take(self, effects: list[WorkerEffect], answered: str = "") -> None:
        """File effects; an answer to a subscription or renewal starts the consumer's lease anew."""
        for effect in effects:
            if isinstance(effect, ComputeChecksums):
                self.checksum_requests.append(effect)
                continue
            assert isinstance(effect, SendToConsumer)
            message = effect.message
            assert effect.peer_id == message.transfer_id.encode()
            consumer = self.consumers.get(message.transfer_id)
            if isinstance(message, LeaseGone) or consumer is None:
                self.consumers.pop(message.transfer_id, None)
            elif isinstance(message, BlocksReady):
                consumer.offers.update({offer.index: offer for offer in message.offers})
                if message.transfer_id == answered:
                    consumer.lease_until = self.now + LEASE_S

    def assert_kept(self, consumer: Consumer) -> None:
        for offer in consumer.offers.values():
            assert self.pool.generation(offer.block_id) == offer.generation
            assert self.pool.state(offer.block_id) in (BlockState.ACTIVE, BlockState.HELD)


@pytest.mark.parametrize("has_checksums", [False, True], ids=["confirm", "checksum"])
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32), num_actions=st.integers(10, 120))
def test_no_block_leaks_and_none_under_a_lease_is_lost(
    has_checksums: bool, seed: int, num_actions: int
) -> None:
    play = Play(seed, has_checksums=has_checksums)
    play.run(num_actions)
    play.finish()
