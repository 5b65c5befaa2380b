"""The lease table under any order of events of a worker and its pullers: no block leaks or slips away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton_core.block_pool import BlockPool, BlockState
from baton_core.lease_table import HoldTimings, LeaseTable
from baton_core.peer_messages import (
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
from baton_core.worker_events import Seal, Sealed, SendToPuller, WorkerEffect

NUM_BLOCKS = 12
EPOCH = 3
LEASE_S = 10.0
REQUESTS = st.sampled_from(["a", "b", "c"])
TRANSFERS = st.sampled_from(["t1", "t2", "t3", "t4"])
EPOCHS = st.sampled_from([EPOCH, EPOCH, EPOCH, EPOCH - 1])


@dataclass
class Puller:
    """What a puller may rely on: blocks that were offered, until when it may read them."""

    request_id: str
    lease_until: float = 0.0
    offers: dict[int, BlockOffer] = field(default_factory=dict)


class LeaseTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = BlockPool(NUM_BLOCKS)
        self.prefills: dict[str, list[int]] = {}
        """Requests whose prompt is being computed, with their block tables."""
        self.pullers: dict[str, Puller] = {}
        self.foreign: list[int] = []
        self.seals: list[Seal] = []

    @initialize(needs_seal=st.booleans())
    def configure(self, needs_seal: bool) -> None:
        self.leases = LeaseTable(self.pool, epoch=EPOCH, needs_seal=needs_seal, timings=HoldTimings())

    # --- the worker ---

    @rule(request_id=REQUESTS, num_blocks=st.integers(1, 4))
    def open(self, request_id: str, num_blocks: int) -> None:
        if request_id in self.prefills or (table := self.pool.allocate(num_blocks)) is None:
            return
        self.prefills[request_id] = table
        self.pullers = {
            name: puller
            for name, puller in self.pullers.items()
            if puller.request_id != request_id or not puller.offers
        }
        self._take(self.leases.open(self.now, request_id))

    @precondition(lambda self: self.prefills)
    @rule(data=st.data(), num_ready=st.integers(1, 4))
    def compute(self, data: Any, num_ready: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.prefills)))
        table = self.prefills[request_id]
        self._take(self.leases.add_blocks(request_id, table, min(num_ready, len(table))))

    @precondition(lambda self: self.prefills)
    @rule(data=st.data(), is_cancelled=st.booleans())
    def end(self, data: Any, is_cancelled: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.prefills)))
        self._end(request_id, is_cancelled=is_cancelled)

    @rule(request_id=REQUESTS)
    def withdraw(self, request_id: str) -> None:
        """A cancel that comes after the prompt was computed, or for nothing at all."""
        if request_id not in self.prefills:
            self._take(self.leases.withdraw(request_id, "the request was cancelled"))

    @precondition(lambda self: self.seals)
    @rule(data=st.data(), is_lost=st.booleans())
    def seal(self, data: Any, is_lost: bool) -> None:
        seal = self.seals.pop(data.draw(st.integers(0, len(self.seals) - 1)))
        if not is_lost:
            sealed = Sealed(
                request_id=seal.request_id,
                indices=seal.indices,
                block_ids=seal.block_ids,
                checksums=seal.block_ids,
            )
            self._take(self.leases.on_sealed(sealed))

    @rule(count=st.integers(1, 6))
    def others_use_blocks(self, count: int) -> None:
        """Whatever is free gets written by somebody else."""
        self.pool.release(self.foreign)
        self.foreign = self.pool.allocate(min(count, self.pool.num_available)) or []

    @rule(elapsed_s=st.sampled_from([0.5, 3.0, 8.0, 16.0]))
    def let_time_pass(self, elapsed_s: float) -> None:
        self.now += elapsed_s
        self.leases.expire(self.now)
        deadline = self.leases.next_deadline()
        assert deadline is None or deadline > self.now

    # --- pullers, whose messages and answers may be lost ---

    @rule(
        transfer_id=TRANSFERS,
        request_id=REQUESTS,
        epoch=EPOCHS,
        indices=st.sets(st.integers(0, 3), min_size=1),
    )
    def subscribe(self, transfer_id: str, request_id: str, epoch: int, indices: set[int]) -> None:
        if transfer_id in self.pullers and self.pullers[transfer_id].request_id != request_id:
            return
        self.pullers.setdefault(transfer_id, Puller(request_id=request_id))
        message = Subscribe(
            transfer_id=transfer_id,
            request_id=request_id,
            holder_epoch=epoch,
            indices=tuple(sorted(indices)),
            lease_s=LEASE_S,
        )
        self._say(transfer_id, message)

    @rule(transfer_id=TRANSFERS, epoch=EPOCHS, missing=st.sets(st.integers(0, 3)))
    def renew(self, transfer_id: str, epoch: int, missing: set[int]) -> None:
        message = LeaseRenew(
            transfer_id=transfer_id, holder_epoch=epoch, missing=tuple(sorted(missing)), renewal=1
        )
        self._say(transfer_id, message)

    @precondition(lambda self: any(puller.offers for puller in self.pullers.values()))
    @rule(data=st.data())
    def confirm(self, data: Any) -> None:
        names = sorted(name for name, puller in self.pullers.items() if puller.offers)
        transfer_id = data.draw(st.sampled_from(names))
        offers = tuple(self.pullers[transfer_id].offers.values())
        message = Confirm(transfer_id=transfer_id, holder_epoch=EPOCH, offers=offers)
        (effect,) = self.leases.on_message(self.now, transfer_id.encode(), message)
        assert isinstance(effect, SendToPuller)
        assert isinstance(effect.message, Confirmed)
        if self.pullers[transfer_id].lease_until > self.now:
            assert effect.message.is_held
        if effect.message.is_held:
            self._assert_kept(self.pullers[transfer_id])

    @rule(transfer_id=TRANSFERS, epoch=EPOCHS)
    def release(self, transfer_id: str, epoch: int) -> None:
        message = Release(transfer_id=transfer_id, holder_epoch=epoch)
        self._say(transfer_id, message)
        if epoch == EPOCH:
            self.pullers.pop(transfer_id, None)

    # --- what must hold ---

    @invariant()
    def parts_agree(self) -> None:
        self.pool.check_invariants()
        if hasattr(self, "leases"):
            self.leases.check_invariants()

    @invariant()
    def what_is_under_a_lease_stays(self) -> None:
        for puller in self.pullers.values():
            if puller.lease_until > self.now:
                self._assert_kept(puller)

    def teardown(self) -> None:
        if not hasattr(self, "leases"):
            return
        for request_id in sorted(self.prefills):
            self._end(request_id, is_cancelled=False)
        self.pool.release(self.foreign)
        self.leases.expire(self.now + 1e6)
        assert (self.leases.num_open, self.leases.num_early) == (0, 0)
        assert self.leases.next_deadline() is None
        assert self.pool.num_used == 0

    # --- parts ---

    def _end(self, request_id: str, *, is_cancelled: bool) -> None:
        table = self.prefills.pop(request_id)
        if is_cancelled:
            self._take(self.leases.withdraw(request_id, "the request was cancelled"))
        else:
            self._take(self.leases.add_blocks(request_id, table, len(table)))
            self.leases.complete(self.now, request_id)
        self.pool.release(table)

    def _say(self, transfer_id: str, message: ToHolder) -> None:
        is_other_epoch = message.holder_epoch != EPOCH
        before = (
            self.leases.num_open,
            self.leases.num_early,
            self.leases.next_deadline(),
            self.pool.num_used,
        )
        effects = self.leases.on_message(self.now, transfer_id.encode(), message)
        if is_other_epoch:
            (effect,) = effects
            assert isinstance(effect, SendToPuller)
            assert isinstance(effect.message, LeaseGone)
            after = (
                self.leases.num_open,
                self.leases.num_early,
                self.leases.next_deadline(),
                self.pool.num_used,
            )
            assert after == before
        else:
            self._take(effects, answered=transfer_id)

    def _take(self, effects: list[WorkerEffect], answered: str = "") -> None:
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

    def _assert_kept(self, puller: Puller) -> None:
        for offer in puller.offers.values():
            assert self.pool.generation(offer.block_id) == offer.generation
            assert self.pool.state(offer.block_id) in (BlockState.ACTIVE, BlockState.HELD)


LeaseTableMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLeaseTable = LeaseTableMachine.TestCase
