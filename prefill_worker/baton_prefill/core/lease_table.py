"""The producer's side of a transfer: which blocks are kept for whom, until when.

A prefill request opens an offer. Every block that becomes ready is leased to the offer, so preemption and
the end of the request cannot take it away. A consumer subscribes, renews and releases; silence ends the
lease, and an offer nobody subscribes to ends too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from baton_core.blocks.block_pool import BlockPool
from baton_core.errors import ErrorCode
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
from baton_core.sessions.router_messages import Failed
from baton_core.worker.worker_events import (
    ChecksumsComputed,
    ChecksumsFailed,
    ComputeChecksums,
    FromConsumer,
    SendToConsumer,
    SendToRouter,
    WorkerEffect,
)

DRAINING_HOLD_S: Final = 1.0
"""Time that blocks wait for a consumer at a worker that drains: one on its way needs less."""
MAX_REMEMBERED: Final = 4096
"""Bound of the tombstones and of the subscriptions that arrive before their prefill."""

MAX_EARLY_INDICES: Final = 2**20
"""Bound of the blocks that those subscriptions name together; a message of 1 MiB names fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimings:
    hold_s: float = 15.0
    """Time that blocks, or an early subscription, wait for the other side."""
    max_lease_s: float = 60.0
    """Longest lease that a consumer may ask for."""


@dataclass(slots=True, kw_only=True)
class _Lease:
    peer_id: bytes
    transfer_id: str
    indices: frozenset[int]
    lease_s: float
    expires_at: float
    renewal: int = 0
    announced: set[int] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class _Offer:
    request_id: str
    router_id: str
    blocks: dict[int, int] = field(default_factory=dict)
    """Place in the prompt's block tables to the block leased for it."""
    checksums: dict[int, int] = field(default_factory=dict)
    pending_checksums: set[int] = field(default_factory=set)
    lease: _Lease | None = None
    is_complete: bool = False
    """The prompt is computed: no more blocks will come."""
    is_withdrawn: bool = False
    """The request is over; what was announced stays until the consumer lets go."""
    hold_until: float | None = None

    @property
    def ends_at(self) -> float | None:
        return self.lease.expires_at if self.lease else self.hold_until


class LeaseTable:
    """The offers of one worker. With `has_checksums` blocks are offered with their checksums."""

    def __init__(self, pool: BlockPool, *, epoch: int, has_checksums: bool, timings: LeaseTimings) -> None:
        self._pool = pool
        self._epoch = epoch
        self._has_checksums = has_checksums
        self._timings = timings
        self._is_draining = False
        self.num_expired = 0
        """Leases whose consumers fell silent."""
        self.num_unclaimed = 0
        """Offers that no consumer came for in time."""
        self._offers: dict[str, _Offer] = {}
        self._request_of: dict[str, str] = {}
        self._early: OrderedDict[str, tuple[float, bytes, Subscribe]] = OrderedDict()
        self._gone: OrderedDict[str, str] = OrderedDict()
        """Requests that are over, and why."""
        self._released: OrderedDict[str, str] = OrderedDict()
        """Transfers that are over: a subscription may arrive after its own release."""

    @property
    def num_open(self) -> int:
        """Offers that still hold blocks or may."""
        return len(self._offers)

    @property
    def num_early(self) -> int:
        return len(self._early)

    # --- from the worker ---

    def open(self, now: float, request_id: str, router_id: str = "") -> list[WorkerEffect]:
        """A prefill begins here; what an earlier one of this name still held is let go."""
        if (old := self._offers.get(request_id)) is not None:
            self._close(old, "its request was started anew")
        self._offers[request_id] = _Offer(request_id=request_id, router_id=router_id)
        self._gone.pop(request_id, None)
        early = self._early.pop(request_id, None)
        return self._subscribe(now, early[1], early[2]) if early else []

    def add_blocks(self, request_id: str, blocks: Mapping[int, int]) -> list[WorkerEffect]:
        """These blocks of the prompt, by their places, will not be written again."""
        offer = self._offers.get(request_id)
        if offer is None or offer.is_withdrawn:
            return []
        for index, block_id in blocks.items():
            if index not in offer.blocks:
                offer.blocks[index] = block_id
                self._pool.lease([block_id])
        return self._announce(offer)

    def complete(self, now: float, request_id: str) -> None:
        """The prompt is computed; if nobody subscribed yet, wait for `hold_s`."""
        offer = self._offers.get(request_id)
        if offer is not None and not offer.is_withdrawn:
            offer.is_complete = True
            offer.hold_until = now + (DRAINING_HOLD_S if self._is_draining else self._timings.hold_s)

    def set_draining(self, now: float, *, is_draining: bool) -> None:
        """Say whether this worker is to be emptied: then what nobody comes for is soon given back."""
        if is_draining and not self._is_draining:
            for offer in self._offers.values():
                if offer.hold_until is not None:
                    offer.hold_until = min(offer.hold_until, now + DRAINING_HOLD_S)
        self._is_draining = is_draining

    def held(self, request_id: str) -> Mapping[int, int]:
        """Blocks that are kept for a request, by their places in its prompt; valid until the next change."""
        offer = self._offers.get(request_id)
        return {} if offer is None or offer.is_withdrawn else offer.blocks

    def withdraw(self, request_id: str, reason: str) -> list[WorkerEffect]:
        """The request is over without a hand-over: keep only what a consumer may be reading."""
        offer = self._offers.get(request_id)
        if offer is None or offer.is_withdrawn:
            return []
        if offer.lease is None:
            self._close(offer, reason)
            return []
        offer.is_withdrawn = True
        self._drop(offer, [index for index in offer.blocks if index not in offer.lease.announced])
        _remember(self._gone, request_id, reason)
        return [self._gone_answer(offer.lease.peer_id, offer.lease.transfer_id, reason)]

    def on_checksums(self, computed: ChecksumsComputed) -> list[WorkerEffect]:
        """Announce the blocks whose checksums are known now."""
        request = computed.request
        offer = self._offers.get(request.request_id)
        if offer is None:
            return []
        blocks = zip(request.indices, request.block_ids, computed.checksums, strict=True)
        for index, block_id, checksum in blocks:
            if offer.blocks.get(index) == block_id:
                offer.pending_checksums.discard(index)
                offer.checksums[index] = checksum
        return [] if offer.is_withdrawn else self._announce(offer)

    # --- from the consumer ---

    def on_event(
        self, now: float, event: FromConsumer | ChecksumsComputed | ChecksumsFailed
    ) -> list[WorkerEffect]:
        """Take what concerns the producer's side."""
        match event:
            case FromConsumer(peer_id=peer_id, message=message):
                return self.on_message(now, peer_id, message)
            case ChecksumsComputed():
                return self.on_checksums(event)
            case ChecksumsFailed(request=request, error=reason):
                return self.withdraw(request.request_id, reason)
        assert_never(event)

    def on_message(self, now: float, peer_id: bytes, message: ToProducer) -> list[WorkerEffect]:
        """Answer one message of a consumer.

        A message for another epoch is answered, never acted on, and does not learn the epoch of this worker.
        """
        if (asked := message.producer_epoch) != self._epoch:
            reason = f"epoch {asked} of this worker is over"
            gone = LeaseGone(transfer_id=message.transfer_id, producer_epoch=asked, reason=reason)
            return [SendToConsumer(peer_id=peer_id, message=gone)]
        match message:
            case Subscribe():
                return self._subscribe(now, peer_id, message)
            case LeaseRenew():
                return self._renew(now, peer_id, message)
            case Confirm():
                return self._confirm(peer_id, message)
            case Release():
                self._release(peer_id, message.transfer_id)
                return []

    def expire(self, now: float) -> list[WorkerEffect]:
        """End every lease, hold and early subscription whose time is over.

        A worker that is to be emptied says whose blocks nobody came for: that request can go on elsewhere.
        """
        effects: list[WorkerEffect] = []
        for offer in [offer for offer in self._offers.values() if _is_due(offer.ends_at, now)]:
            if offer.lease is None:
                self.num_unclaimed += 1
                if self._is_draining:
                    effects.append(_given_back(offer))
            else:
                self.num_expired += 1
            self._close(offer, "its lease expired" if offer.lease else "nobody pulled it in time")
        while self._early and next(iter(self._early.values()))[0] <= now:
            self._early.popitem(last=False)
        return effects

    def next_deadline(self) -> float | None:
        deadlines = [offer.ends_at for offer in self._offers.values() if offer.ends_at is not None]
        deadlines += [deadline for deadline, _, _ in list(self._early.values())[:1]]
        return min(deadlines, default=None)

    def check_invariants(self) -> None:
        """Raise AssertionError when an offer and its lease disagree."""
        for offer in self._offers.values():
            assert not set(offer.checksums) - set(offer.blocks), f"{offer.request_id}: checksum without block"
            if offer.lease is not None:
                assert self._request_of[offer.lease.transfer_id] == offer.request_id
                assert offer.lease.announced <= set(offer.blocks), f"{offer.request_id}: announced, not held"
            assert offer.lease or not offer.is_withdrawn, f"{offer.request_id}: withdrawn and kept"

    # --- steps ---

    def _subscribe(self, now: float, peer_id: bytes, message: Subscribe) -> list[WorkerEffect]:
        if message.transfer_id in self._released:
            return []
        if self._request_of.get(message.transfer_id, message.request_id) != message.request_id:
            return [self._gone_answer(peer_id, message.transfer_id, "another request has this transfer_id")]
        offer = self._offers.get(message.request_id)
        if offer is None and message.request_id not in self._gone:
            self._early[message.request_id] = (now + self._timings.hold_s, peer_id, message)
            self._early.move_to_end(message.request_id)
            while len(self._early) > MAX_REMEMBERED or _num_indices(self._early) > MAX_EARLY_INDICES:
                self._early.popitem(last=False)
            return []
        if offer is None or offer.is_withdrawn:
            reason = self._gone.get(message.request_id, "the request is over")
            return [self._gone_answer(peer_id, message.transfer_id, reason)]
        effects: list[WorkerEffect] = []
        if offer.lease is not None and offer.lease.transfer_id != message.transfer_id:
            effects.append(self._gone_answer(offer.lease.peer_id, offer.lease.transfer_id, "replaced"))
            del self._request_of[offer.lease.transfer_id]
        lease_s = min(message.lease_s, self._timings.max_lease_s) if message.lease_s > 0 else 0.0
        offer.lease = _Lease(
            peer_id=peer_id,
            transfer_id=message.transfer_id,
            indices=frozenset(message.indices),
            lease_s=lease_s,
            expires_at=now + lease_s,
        )
        self._request_of[message.transfer_id] = message.request_id
        return effects + (self._announce(offer) or [self._ready(offer.lease, ())])

    def _renew(self, now: float, peer_id: bytes, message: LeaseRenew) -> list[WorkerEffect]:
        offer = self._offer_of(peer_id, message.transfer_id)
        if offer is None or offer.lease is None or offer.is_withdrawn:
            return [self._gone_answer(peer_id, message.transfer_id, "there is no such lease")]
        offer.lease.expires_at = now + offer.lease.lease_s
        offer.lease.renewal = max(offer.lease.renewal, message.renewal)
        offer.lease.announced -= set(message.missing)
        return self._announce(offer) or [self._ready(offer.lease, ())]

    def _confirm(self, peer_id: bytes, message: Confirm) -> list[WorkerEffect]:
        offer = self._offer_of(peer_id, message.transfer_id)
        is_held = offer is not None and all(
            offer.blocks.get(block.index) == block.block_id
            and self._pool.generation(block.block_id) == block.generation
            for block in message.offers
        )
        answer = Confirmed(
            transfer_id=message.transfer_id, producer_epoch=self._epoch, is_held=is_held, part=message.part
        )
        return [SendToConsumer(peer_id=peer_id, message=answer)]

    def _release(self, peer_id: bytes, transfer_id: str) -> None:
        _remember(self._released, transfer_id, "it was released")
        offer = self._offer_of(peer_id, transfer_id)
        if offer is None:
            return
        if offer.is_complete or offer.is_withdrawn:
            self._close(offer, "it was released")
        else:
            offer.lease = None
            del self._request_of[transfer_id]

    # --- parts ---

    def _announce(self, offer: _Offer) -> list[WorkerEffect]:
        """Announce the subscribed blocks that were not announced yet, once they have their checksums."""
        lease = offer.lease
        if lease is None:
            return []
        fresh = sorted((offer.blocks.keys() & lease.indices) - lease.announced)
        if self._has_checksums:
            unknown = tuple(i for i in fresh if i not in offer.checksums and i not in offer.pending_checksums)
            fresh = [index for index in fresh if index in offer.checksums]
        else:
            unknown = ()
        effects: list[WorkerEffect] = []
        if unknown:
            offer.pending_checksums.update(unknown)
            block_ids = tuple(offer.blocks[index] for index in unknown)
            effects.append(
                ComputeChecksums(request_id=offer.request_id, indices=unknown, block_ids=block_ids)
            )
        if fresh:
            lease.announced.update(fresh)
            offers = [self._block_offer(offer, index) for index in fresh]
            effects += [self._ready(lease, part) for part in split_offers(offers)]
        return effects

    def _block_offer(self, offer: _Offer, index: int) -> BlockOffer:
        block_id = offer.blocks[index]
        return BlockOffer(
            index=index,
            block_id=block_id,
            generation=self._pool.generation(block_id),
            checksum=offer.checksums.get(index),
        )

    def _ready(self, lease: _Lease, offers: tuple[BlockOffer, ...]) -> SendToConsumer:
        message = BlocksReady(
            transfer_id=lease.transfer_id, producer_epoch=self._epoch, offers=offers, renewal=lease.renewal
        )
        return SendToConsumer(peer_id=lease.peer_id, message=message)

    def _gone_answer(self, peer_id: bytes, transfer_id: str, reason: str) -> SendToConsumer:
        message: ToConsumer = LeaseGone(transfer_id=transfer_id, producer_epoch=self._epoch, reason=reason)
        return SendToConsumer(peer_id=peer_id, message=message)

    def _offer_of(self, peer_id: bytes, transfer_id: str) -> _Offer | None:
        """Return the offer of a transfer, whose lease is nobody's but the peer's."""
        offer = self._offers.get(self._request_of.get(transfer_id, ""))
        return offer if offer and offer.lease and offer.lease.peer_id == peer_id else None

    def _drop(self, offer: _Offer, indices: Sequence[int]) -> None:
        self._pool.end_lease([offer.blocks.pop(index) for index in sorted(indices)])
        for index in indices:
            offer.checksums.pop(index, None)

    def _close(self, offer: _Offer, reason: str) -> None:
        self._drop(offer, list(offer.blocks))
        if offer.lease is not None:
            del self._request_of[offer.lease.transfer_id]
        del self._offers[offer.request_id]
        _remember(self._gone, offer.request_id, reason)


def _given_back(offer: _Offer) -> SendToRouter:
    text = "no decode worker came for the prompt's blocks, and the worker drains"
    failed = Failed(request_id=offer.request_id, code=ErrorCode.UNAVAILABLE, message=text)
    return SendToRouter(router_id=offer.router_id, message=failed)


def _num_indices(early: Mapping[str, tuple[float, bytes, Subscribe]]) -> int:
    return sum(len(message.indices) for _, _, message in early.values())


def _remember(tombstones: OrderedDict[str, str], name: str, reason: str) -> None:
    tombstones[name] = reason
    if len(tombstones) > MAX_REMEMBERED:
        tombstones.popitem(last=False)


def _is_due(deadline: float | None, now: float) -> bool:
    return deadline is not None and deadline <= now
