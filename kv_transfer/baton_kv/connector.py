"""The connector: what moves KV blocks between the pools of two workers.

Decisions (who may pull what, leases, deadlines) are made in `baton_prefill.core` and `baton_decode.core`; a
connector only executes them.
One thread at a time owns a connector: the caller until it starts a `TransferThread`, that thread afterwards.
Only `wake` is for others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from baton_core.errors import BatonError, ErrorCode
from baton_core.worker.worker_events import Pull, PullAborted, PullDone

if TYPE_CHECKING:
    import torch

    from baton_kv.part_reads import PartRead
    from baton_kv.pool_memory import Lend


class VerifiesBy(StrEnum):
    """The way in which a consumer verifies that the bytes it copied are the bytes that were leased."""

    CHECKSUM = "checksum"
    """The connector compares the producer's checksum: a block that did not fail is valid."""
    CONFIRMATION = "confirmation"
    """The producer is asked afterwards whether the lease still held: until then a block is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    name: str
    """Name of the transport, as in descriptions; several are joined by `+`."""
    verifies_by: VerifiesBy
    has_safe_abort: bool
    """True if `abort` always fences."""
    pins_pool: bool = False
    """True if the pool's memory is known to devices by its address: it cannot be given back until `close`."""


class _FieldError(BatonError):
    """An error that names a field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} is {value!r}; allowed: {allowed}")
        self.field = field


class ProducerUnreachableError(_FieldError):
    """A peer's pool that cannot be opened from here."""

    code = ErrorCode.UNAVAILABLE


class InvalidBlocksError(_FieldError):
    """A pull, or a request for checksums, names blocks that do not exist."""

    code = ErrorCode.INTERNAL


class KVConnector(ABC):
    """Registers the local pool, describes it to peers, and pulls blocks out of theirs."""

    capabilities: Capabilities

    @abstractmethod
    def allocate(self, num_blocks: int, lend: Lend | None = None) -> torch.Tensor:
        """Place the local pool `[num_blocks, *spec.block_shape]` of `spec.dtype`, zeroed. Called once.

        The tensor stays usable after `close`. `lend` hands the pool to the processes that compute with this
        one; its memory begins with block 0.

        Raises:
            InvalidConfigError: no blocks, or the memory is not there.
        """

    def register(self, pool: torch.Tensor) -> None:
        """Serve a pool that is placed already, on any device, instead of allocating one.

        Connectors that share memory place theirs themselves.
        """
        raise AssertionError(f"{self.capabilities.name} places its pool itself, not on {pool.device}")

    @abstractmethod
    def describe(self) -> bytes:
        """Describe the local pool for a peer's `connect`; valid until `close`. Needs `allocate`."""

    @abstractmethod
    def connect(self, peer_id: str, description: bytes, part: PartRead | None = None) -> None:
        """Open a peer's pool, replacing what was open under this id.

        Of a `part` of each block nothing is verified: whoever asks for it knows how.

        Pulls in flight from the replaced pool fail. Blocks for at most the backend's deadline. A
        backend that would have to wait for the network returns at once: its pulls end with the error.

        Raises:
            IncompatibleWorkerError: no common transport, or blocks that cannot be converted.
            ProducerUnreachableError: the producer is gone, silent, elsewhere, or not the one described.
        """

    @abstractmethod
    def compute_checksums(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        """Compute xxh3_64 over all bytes of local blocks, as they lie here, for the consumers to compare.

        None for each block where pulls are verified by confirmation. The caller sees to it that every write
        to these blocks has finished, and that nothing writes to them until the last consumer has released
        them: a checksum covers the unfilled tail of a partial block as well.

        Raises:
            InvalidBlocksError: a block id outside the pool.
        """

    @abstractmethod
    def pull(self, pull: Pull) -> None:
        """Accept a pull from a connected worker; `poll` executes it.

        Nothing is written before the whole pull is found sound.

        Blocks arrive in the layout of the local pool, whatever the producer's is.

        One that cannot be executed (unknown worker, another epoch, block ids out of range) does not raise
        but ends, like every other, in one `PullDone`. Until then nobody else reads or writes the
        destination blocks.

        Raises:
            ValueError: the pull id is in flight already.
        """

    @abstractmethod
    def poll(self) -> list[PullDone]:
        """Advance the pulls, and what peers ask of the local pool, by a bounded step.

        Returns the pulls that ended, in the order of their ends.
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
    def abort(self, pull_id: int) -> PullAborted:
        """Give up a pull. One that has ended already is fenced, and no `PullDone` of it follows."""

    def transport_of(self, peer_id: str) -> str:
        """Name of the transport that the blocks of a connected peer take."""
        return self.capabilities.name

    def gone_peers(self) -> list[str]:
        """Return the connected peers whose pools are known to be gone for ever; others may be, too."""
        return []

    @abstractmethod
    def disconnect(self, peer_id: str) -> None:
        """Drop what `connect` opened; pulls in flight from it fail. Does nothing for an unknown id."""

    @abstractmethod
    def close(self) -> None:
        """Withdraw the local pool from peers and drop theirs. Pulls in flight end without a `PullDone`."""
