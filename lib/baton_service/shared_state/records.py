"""What the values in Redis look like: msgpack of these and of `WorkerInfo`; hashes one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from baton_core.blocks.block_hash import HASH_BYTES
from baton_core.msgpack import decoder_of
from baton_core.routing.charge import Charge


class RouterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A router as it registers. A router that starts again has another id."""

    router_id: str
    epoch: int
    address: str
    """`host:port` that workers dial."""


class ChangeHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Of an entry in the stream of changes, before its hashes."""

    worker_id: str
    epoch: int
    number: int
    """Of the worker's writes in that epoch, from 1 on without a gap, whatever they say."""
    is_snapshot: bool = False
    """The set was replaced; the entry has no hashes, readers read the set."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All that a router has given to workers and not taken back."""

    router_id: str
    number: int
    """Counts up with every change."""
    charges: tuple[Charge, ...] = ()


read_router: Final[Callable[[bytes], RouterRecord]] = decoder_of(RouterRecord)
read_change: Final[Callable[[bytes], ChangeHeader]] = decoder_of(ChangeHeader)
read_ledger: Final[Callable[[bytes], Ledger]] = decoder_of(Ledger)


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
