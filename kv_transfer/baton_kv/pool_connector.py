"""The part that every backend shares: one local pool, peers by name, and pulls that are checked and ended."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from baton_core.errors import IncompatibleWorkerError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.worker_events import Pull, PullDone
from baton_kv.connector import InvalidBlocksError, KVConnector, ProducerUnreachableError
from baton_kv.description import Offer, PoolDescription, decode_description, describe_pool
from baton_kv.part_reads import PartRead
from baton_kv.pool_bytes import allocate_pool
from baton_kv.running_pull import RunningPull, require_in_range

if TYPE_CHECKING:
    import torch

    from baton_kv.pool_memory import Lend


class Peer(Protocol):
    """A connected peer's pool."""

    @property
    def epoch(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...


PeerT = TypeVar("PeerT", bound=Peer)


class PoolConnector(KVConnector, Generic[PeerT]):
    """Refuses unsound pulls and hands the others to the backend, which reports each end to `_on_end`."""

    def __init__(self, spec: KVSpec, epoch: int) -> None:
        self._spec = spec
        self._epoch = epoch
        self._peers: dict[str, PeerT] = {}
        self._sources: dict[int, str] = {}
        """The peer of each pull in flight."""
        self._ended: list[PullDone] = []

    @property
    @abstractmethod
    def offer(self) -> Offer:
        """The entry for the local pool in a description."""

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Blocks of the local pool; RuntimeError before it is allocated."""

    @abstractmethod
    def _begin(self, peer: PeerT, pull: Pull) -> None:
        """Take a sound pull of at least one block.

        Raises:
            ProducerUnreachableError: the peer cannot be reached.
        """

    def _decode(self, description: bytes, part: PartRead | None) -> PoolDescription:
        """Read a peer's description, as `connect` takes it.

        Raises:
            IncompatibleWorkerError: its blocks, or the part of them that is read, cannot come here.
        """
        if part is None:
            return decode_description(description, self._spec)
        described = decode_description(description, part.spec)
        for name in ("k_axes", "v_axes"):
            if (axes := getattr(described, name)) != (own := getattr(self._spec, name)):
                text = f"{name} of the peer's pool is {axes!r}, of which a part is read"
                raise IncompatibleWorkerError(f"{text}; allowed: {own!r}, as here")
        return described

    def allocate(self, num_blocks: int, lend: Lend | None = None) -> torch.Tensor:
        pool = allocate_pool(num_blocks, self._spec, lend)
        self.register(pool)
        return pool

    def describe(self) -> bytes:
        return describe_pool(self._spec, self._epoch, self.num_blocks, self.offer).encode()

    def pull(self, pull: Pull) -> None:
        if pull.pull_id in self._sources:
            raise ValueError(f"pull_id is {pull.pull_id}; allowed: one that is not in flight")
        self._sources[pull.pull_id] = pull.source.worker_id
        try:
            peer = self._require_sound(pull)
            if pull.blocks:
                self._begin(peer, pull)
                return
            done = RunningPull(pull).end()
        except (InvalidBlocksError, ProducerUnreachableError) as error:
            done = RunningPull(pull).end(str(error))
        self._on_end(done)

    def _require_sound(self, pull: Pull) -> PeerT:
        """Return the peer of a pull that names blocks of both pools, each of the local ones once.

        Raises:
            InvalidBlocksError: names the field.
        """
        source, blocks = pull.source, pull.blocks
        peer = self._peers.get(source.worker_id)
        if peer is None:
            raise InvalidBlocksError("source", source.worker_id, f"one of {sorted(self._peers)}")
        if source.epoch != peer.epoch:
            raise InvalidBlocksError("epoch", source.epoch, f"{peer.epoch}, the one that is connected")
        require_in_range("remote_block_id", [block.remote_block_id for block in blocks], peer.num_blocks)
        local_ids = [block.local_block_id for block in blocks]
        require_in_range("local_block_id", local_ids, self.num_blocks)
        if len(set(local_ids)) != len(local_ids):
            raise InvalidBlocksError("local_block_id", local_ids, "each block once")
        return peer

    def _on_end(self, done: PullDone) -> None:
        del self._sources[done.pull_id]
        self._ended.append(done)

    def _take_ended(self) -> list[PullDone]:
        ended, self._ended = self._ended, []
        return ended

    def _drop_ended(self, pull_id: int) -> None:
        """Forget the end of a pull that was not taken yet."""
        self._ended = [done for done in self._ended if done.pull_id != pull_id]
