"""The messages between a decode worker and a prefill worker over the peer channel.

The structs are also the wire: msgpack with a type tag. A message may be lost, repeated or late; each
names its transfer and the producer's epoch, so whoever receives it can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from baton_core.msgpack import decoder_of

MAX_OFFERS: Final = 16_384
"""Blocks that one message offers or confirms: they take at most half of the 1 MiB that a message may have."""


class BlockOffer(msgspec.Struct, frozen=True, array_like=True):
    """One block that may be pulled."""

    index: int
    """Place in the prompt's block tables, laid end to end: see `Paging.prompt_places`."""
    block_id: int
    """The producer's block."""
    generation: int
    """Number of times that the producer has allocated this block: a reused block has another."""
    checksum: int | None = None
    """xxh3_64 over the block's wire bytes; None where the backend confirms instead."""


_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]


class _PeerMessage(msgspec.Struct, frozen=True, tag=True):
    """A message about one transfer."""

    transfer_id: _Name
    producer_epoch: int


class Subscribe(_PeerMessage, frozen=True, tag=True):
    """Ask for the blocks of a request, as they become ready, under a lease."""

    request_id: _Name
    indices: tuple[int, ...]
    lease_s: float


class LeaseRenew(_PeerMessage, frozen=True, tag=True):
    """Extend the lease; `missing` names indices not announced yet, for announcements that got lost."""

    missing: tuple[int, ...]
    renewal: int
    """1 for the first renewal, then counting."""


class Confirm(_PeerMessage, frozen=True, tag=True):
    """Ask whether these blocks stayed under the lease until now."""

    offers: tuple[BlockOffer, ...]
    part: int = 0
    """Number of the message among those that ask for one transfer."""


class Release(_PeerMessage, frozen=True, tag=True):
    """End the lease."""


class BlocksReady(_PeerMessage, frozen=True, tag=True):
    """Blocks that may be pulled. Also the answer to a renewal, then perhaps with no new block."""

    offers: tuple[BlockOffer, ...]
    renewal: int
    """The latest renewal that the producer has seen; 0 before the first."""


class Confirmed(_PeerMessage, frozen=True, tag=True):
    is_held: bool
    part: int = 0
    """The part of the `Confirm` that it answers."""


class LeaseGone(_PeerMessage, frozen=True, tag=True):
    """The producer has no such lease: the request is over there, the lease expired, or another epoch runs."""

    reason: str


ToProducer = Subscribe | LeaseRenew | Confirm | Release
ToConsumer = BlocksReady | Confirmed | LeaseGone
PeerMessage = ToProducer | ToConsumer

encode_peer = msgspec.msgpack.Encoder().encode
decode_peer: Callable[[bytes], PeerMessage] = decoder_of(PeerMessage)


def split_offers(offers: Sequence[BlockOffer]) -> list[tuple[BlockOffer, ...]]:
    """Divide offers into those of one message each."""
    return [tuple(offers[start : start + MAX_OFFERS]) for start in range(0, len(offers), MAX_OFFERS)]
