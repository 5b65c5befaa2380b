"""The lease table under any order of events of a worker and its pullers: no block leaks or slips away."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.blocks.block_pool import BlockPool, BlockState
from baton_core.blocks.lease_table import HoldTimings, LeaseTable
from baton_core.blocks.peer_messages import (
    BlockOffer,
    BlocksReady,
    Confirm,
    Confirmed,
    LeaseGone,
    LeaseRenew,
    Release,
    Subscribe,
    ToHolder,
)
from baton_core.worker.worker_events import Seal, Sealed, SendToPuller, WorkerEffect

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
    "seal": 4,
    "others_use_blocks": 2,
    "let_time_pass": 3,
    "subscribe": 5,
    "renew": 4,
    "confirm": 3,
    "release": 1,
}
"""What may happen next, and how often. Messages get lost by not being sent."""


@dataclass
class Puller:
    """What a puller may rely on: blocks that were offered, until when it may read them."""

    request_id: str
    lease_until: float = 0.0
    offers: dict[int, BlockOffer] = field(default_factory=dict)


class Play:
    """One worker's table and pool, and the pullers' books."""

    def __init__(self, seed: int, *, needs_seal: bool) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.pool = BlockPool(NUM_BLOCKS)
        self.leases = LeaseTable(self.pool, epoch=EPOCH, needs_seal=needs_seal, timings=HoldTimings())
        self.prefills: dict[str, list[int]] = {}
        """Requests whose prompt is being computed, with their block tables."""
        self.pullers: dict[str, Puller] = {}
        self.foreign: list[int] = []
        self.seals: list[Seal] = []

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
        self.pullers = {
            name: puller
            for name, puller in self.pullers.items()
            if puller.request_id != request_id or not puller.offers
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

    def seal(self) -> None:
        if self.seals:
            seal = self.seals.pop(self.random.randrange(len(self.seals)))
            sealed = Sealed(
                request_id=seal.request_id,
                indices=seal.indices,
                block_ids=seal.block_ids,
                checksums=seal.block_ids,
            )
            self.take(self.leases.on_sealed(sealed))

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

    # --- pullers ---

    def subscribe(self) -> None:
        transfer_id = self.random.choice(TRANSFERS)
        self.pullers.setdefault(transfer_id, Puller(request_id=transfer_id[0]))
        message = Subscribe(
            transfer_id=transfer_id,
            request_id=transfer_id[0],
            holder_epoch=self.epoch(),
            indices=tuple(self.random.sample(range(4), self.random.randint(1, 4))),
            lease_s=LEASE_S,
        )
        self.say(transfer_id, message)

    def renew(self) -> None:
        transfer_id = self.random.choice(TRANSFERS)
        missing = tuple(self.random.sample(range(4), self.random.randint(0, 2)))
        message = LeaseRenew(transfer_id=transfer_id, holder_epoch=self.epoch(), missing=missing, renewal=1)
        self.say(transfer_id, message)

    def confirm(self) -> None:
        names = sorted(name for name, puller in self.pullers.items() if puller.offers)
        if not names:
            return
        transfer_id = self.random.choice(names)
        puller = self.pullers[transfer_id]
        message = Confirm(transfer_id=transfer_id, holder_epoch=EPOCH, offers=tuple(puller.offers.values()))
        (effect,) = self.leases.on_message(self.now, transfer_id.encode(), message)
        assert isinstance(effect, SendToPuller)
        assert isinstance(effect.message, Confirmed)
        assert effect.message.is_held or puller.lease_until <= self.now
        if effect.message.is_held:
            self.assert_kept(puller)

    def release(self) -> None:
        transfer_id = self.random.choice(TRANSFERS)
        message = Release(transfer_id=transfer_id, holder_epoch=self.epoch())
        self.say(transfer_id, message)
        if message.holder_epoch == EPOCH:
            self.pullers.pop(transfer_id, None)

    # --- what must hold ---

    def check(self) -> None:
        """Parts agree, and what is under a lease stays."""
        self.pool.check_invariants()
        self.leases.check_invariants()
        for puller in self.pullers.values():
            if puller.lease_until > self.now:
                self.assert_kept(puller)

    def finish(self) -> None:
        """When all requests are over and all pullers silent, time gives every block back."""
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

    def say(self, transfer_id: str, message: ToHolder) -> None:
        before = self.books()
        effects = self.leases.on_message(self.now, transfer_id.encode(), message)
        if message.holder_epoch == EPOCH:
            self.take(effects, answered=transfer_id)
            return
        (effect,) = effects
        assert isinstance(effect, SendToPuller)
        assert isinstance(effect.message, LeaseGone)
        assert self.books() == before

    def books(self) -> tuple[int, int, float | None, int]:
        leases = self.leases
        return (leases.num_open, leases.num_early, leases.next_deadline(), self.pool.num_used)

    def take(self, effects: list[WorkerEffect], answered: str = "") -> None:
        """File effects; an answer to a subscription or renewal starts the puller's lease anew."""
        for effect in effects:
            if isinstance(effect, Seal):
                self.seals.append(effect)
                continue
            assert isinstance(effect, SendToPuller)
            message = effect.message
            assert effect.peer_id == message.transfer_id.encode()
            puller = self.pullers.get(message.transfer_id)
            if isinstance(message, LeaseGone) or puller is None:
                self.pullers.pop(message.transfer_id, None)
            elif isinstance(message, BlocksReady):
                puller.offers.update({offer.index: offer for offer in message.offers})
                if message.transfer_id == answered:
                    puller.lease_until = self.now + LEASE_S

    def assert_kept(self, puller: Puller) -> None:
        for offer in puller.offers.values():
            assert self.pool.generation(offer.block_id) == offer.generation
            assert self.pool.state(offer.block_id) in (BlockState.ACTIVE, BlockState.HELD)


@pytest.mark.parametrize("needs_seal", [False, True], ids=["confirm", "checksum"])
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32), num_actions=st.integers(10, 120))
def test_no_block_leaks_and_none_under_a_lease_is_lost(needs_seal: bool, seed: int, num_actions: int) -> None:
    play = Play(seed, needs_seal=needs_seal)
    play.run(num_actions)
    play.finish()
