"""The formats of the values in Redis: msgpack of these and of `WorkerInfo`; hashes one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec

from baton_core.blocks.block_hash import HASH_BYTES
from baton_core.load_reservation import LoadReservation
from baton_core.msgpack import decoder_of


class RouterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A registered router. It has a new id after each start."""

    router_id: str
    epoch: int
    address: Annotated[str, msgspec.Meta(pattern=r"^\S+:[1-9][0-9]{0,4}\Z")]
    """`host:port` that workers dial."""
    http_address: str = ""
    """`host:port` of HTTP clients; empty where only this machine reaches it."""


class ChangeHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of an entry in the stream of changes, before its hashes."""

    worker_id: str
    epoch: int
    number: int
    """Number of the worker's write in that epoch, from 1 on without a gap."""
    is_snapshot: bool = False
    """The set was replaced; the entry has no hashes, readers read the set."""


class RouterLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load that a router has reserved at all workers."""

    router_id: str
    number: int
    """Counts up with every change."""
    reservations: tuple[LoadReservation, ...] = msgspec.field(default=(), name="charges")


read_router: Final[Callable[[bytes], RouterRecord]] = decoder_of(RouterRecord)
read_change: Final[Callable[[bytes], ChangeHeader]] = decoder_of(ChangeHeader)
read_router_load: Final[Callable[[bytes], RouterLoad]] = decoder_of(RouterLoad)


def pack_hashes(hashes: Iterable[bytes]) -> bytes:
    """Join hashes, each of `HASH_BYTES`."""
    return b"".join(hashes)


def unpack_hashes(packed: bytes) -> tuple[bytes, ...]:
    """Cut what `pack_hashes` joined.

    Raises:
        msgspec.ValidationError: the length is no multiple of a hash's.
    """
    if len(packed) % HASH_BYTES:
        raise msgspec.ValidationError(f"hashes have {len(packed)} bytes; allowed: a multiple of {HASH_BYTES}")
    return tuple(packed[start : start + HASH_BYTES] for start in range(0, len(packed), HASH_BYTES))
