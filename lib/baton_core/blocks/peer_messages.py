"""What a decode worker and a prefill worker say to each other over the peer channel.

The structs are also the wire: msgpack with a type tag. A message may be lost, repeated or late; each
names its transfer and the holder's epoch, so whoever receives it can tell.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from baton_core.msgpack import decoder_of


class BlockOffer(msgspec.Struct, frozen=True, array_like=True):
    """One block that may be pulled."""

    index: int
    """Place in the prompt's block tables, laid end to end: see `Paging.prompt_places`."""
    block_id: int
    """The holder's block."""
    generation: int
    """How often the holder has given this block out: a reused block has another."""
    checksum: int | None = None
    """xxh3_64 over the block's wire bytes; None where the backend confirms instead."""


class Subscribe(msgspec.Struct, frozen=True, tag=True):
    """Ask for the blocks of a request, as they become ready, under a lease."""

    transfer_id: str
    request_id: str
    holder_epoch: int
    indices: tuple[int, ...]
    lease_s: float


class LeaseRenew(msgspec.Struct, frozen=True, tag=True):
    """Extend the lease; `missing` names indices not announced yet, for announcements that got lost."""

    transfer_id: str
    holder_epoch: int
    missing: tuple[int, ...]
    renewal: int
    """1 for the first renewal, then counting."""


class Confirm(msgspec.Struct, frozen=True, tag=True):
    """Ask whether these blocks stayed under the lease until now."""

    transfer_id: str
    holder_epoch: int
    offers: tuple[BlockOffer, ...]


class Release(msgspec.Struct, frozen=True, tag=True):
    """End the lease."""

    transfer_id: str
    holder_epoch: int


class BlocksReady(msgspec.Struct, frozen=True, tag=True):
    """Blocks that may be pulled. Also the answer to a renewal, then perhaps with no new block."""

    transfer_id: str
    holder_epoch: int
    offers: tuple[BlockOffer, ...]
    renewal: int
    """The latest renewal that the holder has seen; 0 before the first."""


class Confirmed(msgspec.Struct, frozen=True, tag=True):
    transfer_id: str
    holder_epoch: int
    is_held: bool


class LeaseGone(msgspec.Struct, frozen=True, tag=True):
    """The holder has no such lease: the request is over there, the lease expired, or another epoch runs."""

    transfer_id: str
    holder_epoch: int
    reason: str


ToHolder = Subscribe | LeaseRenew | Confirm | Release
ToPuller = BlocksReady | Confirmed | LeaseGone
PeerMessage = ToHolder | ToPuller

encode_peer = msgspec.msgpack.Encoder().encode
decode_peer: Callable[[bytes], PeerMessage] = decoder_of(PeerMessage)
