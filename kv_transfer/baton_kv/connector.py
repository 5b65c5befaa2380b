"""The connector: what moves KV blocks between the pools of two workers.

Decisions (who may pull what, leases, deadlines) are made in baton_core; a connector only executes them.
One thread at a time owns a connector: the caller until it starts a `TransferThread`, that thread afterwards.
Only `wake` is for others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from baton_core.errors import BatonError, ErrorCode

if TYPE_CHECKING:
    import torch


class VerifiesBy(StrEnum):
    """How the puller learns that the bytes it took are the bytes that were leased."""

    CHECKSUM = "checksum"
    """The connector compares a checksum made by the holder: an unfailed block is valid."""
    CONFIRMATION = "confirmation"
    """The holder is asked afterwards whether the lease still held: until then a block is not valid."""


class AbortResult(StrEnum):
    FENCED = "fenced"
    """No byte of a destination block changes any more: the blocks may be reused."""
    QUARANTINED = "quarantined"
    """Bytes may still arrive: the blocks stay unused until the order's outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    name: str
    """Name of the transport, as in descriptions; several are joined by `+`."""
    verifies_by: VerifiesBy
    has_safe_abort: bool
    """Whether `abort` always answers `FENCED`."""
    pins_pool: bool = False
    """Whether the pool's memory is known to devices by its address: it cannot be given back until `close`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """One block to bring over."""

    remote_block_id: int
    local_block_id: int
    checksum: int | None = None
    """What the holder's `seal` returned for the remote block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOrder:
    """Blocks to bring over from one peer; `pull_id` is unique among the orders of a connector."""

    pull_id: int
    source: str
    """The peer id given to `connect`."""
    epoch: int
    """Epoch of the holder under which the remote block ids were handed out."""
    copies: tuple[BlockCopy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOutcome:
    """The end of an order: no byte of its destination blocks changes any more."""

    pull_id: int
    failed: tuple[int, ...]
    """Local block ids whose content is undefined, in the order of the copies."""
    error: str | None
    """Why, for a person to read; None if the order succeeded."""
    num_bytes: int
    """Bytes that were written into the local pool."""
    seconds: float
    """From the start of the first copy to the end of the last check."""


class HolderUnreachableError(BatonError):
    """A peer's pool that cannot be opened from here."""

    code = ErrorCode.UNAVAILABLE

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} is {value!r}; allowed: {allowed}")
        self.field = field


class InvalidBlocksError(BatonError):
    """An order or a seal that names what is not there."""

    code = ErrorCode.INTERNAL

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} is {value!r}; allowed: {allowed}")
        self.field = field


class KVConnector(ABC):
    """Registers the local pool, describes it to peers, and pulls blocks out of theirs."""

    capabilities: ClassVar[Capabilities]

    @abstractmethod
    def allocate(self, num_blocks: int) -> torch.Tensor:
        """Place the local pool `[num_blocks, *spec.block_shape]` of `spec.dtype`, zeroed. Called once.

        The tensor stays usable after `close`.

        Raises:
            InvalidConfigError: no blocks, or the memory is not there.
        """

    @abstractmethod
    def describe(self) -> bytes:
        """What a peer's `connect` needs; valid until `close`. Needs `allocate`."""

    @abstractmethod
    def connect(self, peer_id: str, description: bytes) -> None:
        """Open a peer's pool, replacing what was open under this id.

        Whatever was in flight from the replaced pool fails. Blocks for at most the backend's deadline. A
        backend that would have to wait for the network returns at once: its orders say what is wrong.

        Raises:
            IncompatibleWorkerError: no common transport, or blocks that cannot be converted.
            HolderUnreachableError: the holder is gone, silent, elsewhere, or not the one described.
        """

    @abstractmethod
    def seal(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        """Checksum local blocks for their pullers: xxh3_64 over all bytes of a block as it lies here.

        None for each block where pulls are verified by confirmation. The caller sees to it that every write
        to these blocks has finished, and that nothing writes to them until the last puller has released
        them: a checksum covers the unfilled tail of a partial block as well.

        Raises:
            InvalidBlocksError: a block id outside the pool.
        """

    @abstractmethod
    def pull(self, order: PullOrder) -> None:
        """Accept an order; `poll` executes it. Nothing is written before the whole order is found sound.

        Blocks arrive in the layout of the local pool, whatever the holder's is.

        An order that cannot be executed (unknown peer, another epoch, block ids out of range) is not raised
        but ends, like every other, in one `PullOutcome`. Until then nobody else reads or writes the
        destination blocks.

        Raises:
            ValueError: the pull id is in flight already.
        """

    @abstractmethod
    def poll(self) -> list[PullOutcome]:
        """Advance by a bounded step what was ordered here and what peers ask of the local pool.

        Returns the orders that ended, in the order of their ends.
        """

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> None:
        """Block until `poll` may have something to do, `wake` was called, or the time is over.

        None waits as long as it takes. May return early.
        """

    @abstractmethod
    def wake(self) -> None:
        """End the running `wait`, or else the next one. For any thread."""

    @abstractmethod
    def abort(self, pull_id: int) -> AbortResult:
        """Give up an order. When fenced, or ended already, no outcome of it follows."""

    def transport_of(self, peer_id: str) -> str:
        """Which way the blocks of a connected peer take."""
        return self.capabilities.name

    @abstractmethod
    def disconnect(self, peer_id: str) -> None:
        """Drop what `connect` opened; what is in flight from it fails. Does nothing for an unknown id."""

    @abstractmethod
    def close(self) -> None:
        """Withdraw the local pool from peers and drop theirs. Orders in flight end without an outcome."""
