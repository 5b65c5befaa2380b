"""The description of a worker's pool for its peers: a small message, carried by the control channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from baton_core.errors import IncompatibleWorkerError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.msgpack import decoder_of

VERSION: Final = 2


class Offer(msgspec.Struct, frozen=True):
    """A way to the pool."""

    transport: str
    address: str
    """As the transport understands it."""


class PoolDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as its producer offers it. A newer version may add fields but not change these."""

    version: int = VERSION
    layout: str
    """`KVSpec.layout`: what the blocks hold."""
    k_axes: str
    v_axes: str
    """Layout of the blocks; the consumer converts."""
    epoch: int
    """Start of the producer's engine; block ids have no meaning beyond it."""
    num_blocks: int
    offers: tuple[Offer, ...]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def address(self, transport: str) -> str:
        """Return the pool's address under this transport.

        Raises:
            IncompatibleWorkerError: it is not offered.
        """
        addresses = {offer.transport: offer.address for offer in self.offers}
        if transport not in addresses:
            offered = "+".join(addresses)
            raise IncompatibleWorkerError(
                f"transport of the peer's pool is {offered!r}; allowed: {transport!r}"
            )
        return addresses[transport]

    def spec(self, local: KVSpec) -> KVSpec:
        """The peer's spec, given that of a pool with the same `layout`."""
        return replace(local, k_axes=self.k_axes, v_axes=self.v_axes)


_decode: Final[Callable[[bytes], PoolDescription]] = decoder_of(PoolDescription)


def describe_pool(spec: KVSpec, epoch: int, num_blocks: int, *offers: Offer) -> PoolDescription:
    return PoolDescription(
        layout=spec.layout,
        k_axes=spec.k_axes,
        v_axes=spec.v_axes,
        epoch=epoch,
        num_blocks=num_blocks,
        offers=offers,
    )


def decode_description(data: bytes, spec: KVSpec) -> PoolDescription:
    """Read a peer's description and check that a pool of `spec` can take its blocks, converted if need be.

    Raises:
        IncompatibleWorkerError: unreadable, another version, or a cache with other content.
    """
    try:
        description = _decode(data)
    except msgspec.DecodeError as error:
        raise IncompatibleWorkerError(
            f"description is {data[:40]!r}; allowed: a pool description ({error})"
        ) from None
    for field, allowed in (("version", VERSION), ("layout", spec.layout)):
        if (value := getattr(description, field)) != allowed:
            raise IncompatibleWorkerError(f"{field} of the peer's pool is {value!r}; allowed: {allowed!r}")
    if description.num_blocks < 1:
        raise IncompatibleWorkerError(
            f"num_blocks of the peer's pool is {description.num_blocks}; allowed: 1 or more"
        )
    try:
        description.spec(spec)
    except ValueError as error:
        raise IncompatibleWorkerError(f"layout of the peer's pool: {error}") from None
    return description
