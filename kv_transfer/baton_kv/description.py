"""The description of a worker's pool for its peers: a small message, carried by the control channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Final, TypeVar

import msgspec

from baton_core.errors import IncompatibleWorkerError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.msgpack import decoder_of
from baton_core.ranks.rank_layout import ParallelSizes

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


class GroupDescription(PoolDescription, frozen=True, kw_only=True):
    """The pools of a group of ranks, each with its part of every block; `layout` is that of whole blocks."""

    tensor: Annotated[int, msgspec.Meta(ge=1)]
    pipeline: Annotated[int, msgspec.Meta(ge=1)]
    """Sizes of the group."""
    stages: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()
    """Layers of each stage; empty divides them evenly."""
    members: tuple[bytes, ...]
    """Description of each rank's pool, by rank."""

    @property
    def sizes(self) -> ParallelSizes:
        return ParallelSizes(tensor=self.tensor, pipeline=self.pipeline, stages=self.stages)


DescriptionT = TypeVar("DescriptionT", bound=PoolDescription)
_decode: Final[Callable[[bytes], PoolDescription]] = decoder_of(PoolDescription)
_decode_group: Final[Callable[[bytes], GroupDescription]] = decoder_of(GroupDescription)


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
    return _checked(_decode, data, spec)


def decode_group(data: bytes, spec: KVSpec) -> GroupDescription:
    """Read the description of a group of ranks, whose whole blocks are of `spec`.

    Raises:
        IncompatibleWorkerError: as `decode_description`, or ranks or stages that do not make up the group.
    """
    group = _checked(_decode_group, data, spec)
    if len(group.members) != group.sizes.num_ranks:
        text = f"members of the peer's group are {len(group.members)}"
        raise IncompatibleWorkerError(f"{text}; allowed: {group.sizes.num_ranks}, the product of its sizes")
    num_layers = sum(len(one.layers) for one in spec.groups)
    if group.stages and (len(group.stages), sum(group.stages)) != (group.pipeline, num_layers):
        text = f"stages of the peer's group are {group.stages}"
        raise IncompatibleWorkerError(f"{text}; allowed: {group.pipeline} of {num_layers} layers together")
    return group


def _checked(decode: Callable[[bytes], DescriptionT], data: bytes, spec: KVSpec) -> DescriptionT:
    try:
        description = decode(data)
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
