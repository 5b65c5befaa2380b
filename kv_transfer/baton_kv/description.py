"""What a worker tells its peers about its pool: a small message, carried by the control channel."""

from __future__ import annotations

import msgspec

from baton_core.errors import IncompatibleWorkerError

VERSION = 1


class PoolDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as its holder offers it. A newer version may add fields but not change these."""

    version: int = VERSION
    transport: str
    layout: str
    """`KVSpec.layout`: equal layouts are equal bytes."""
    epoch: int
    """Start of the holder's engine; block ids have no meaning beyond it."""
    num_blocks: int
    realm: str
    """Where `address` has a meaning: one host, one process."""
    address: str

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def decode_description(data: bytes, *, transport: str, layout: str) -> PoolDescription:
    """Read a peer's description and check that its blocks can be copied here as they are.

    Raises:
        IncompatibleWorkerError: unreadable, or another version, transport or layout.
    """
    try:
        description = msgspec.msgpack.decode(data, type=PoolDescription)
    except msgspec.DecodeError as error:
        raise IncompatibleWorkerError(
            f"description is {data[:40]!r}; allowed: a pool description ({error})"
        ) from None
    offered = (("version", description.version, VERSION), ("transport", description.transport, transport))
    for field, value, allowed in (*offered, ("layout", description.layout, layout)):
        if value != allowed:
            raise IncompatibleWorkerError(f"{field} of the peer's pool is {value!r}; allowed: {allowed!r}")
    if description.num_blocks < 1:
        raise IncompatibleWorkerError(
            f"num_blocks of the peer's pool is {description.num_blocks}; allowed: 1 or more"
        )
    return description
