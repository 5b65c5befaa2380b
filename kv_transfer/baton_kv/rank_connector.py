"""One rank's connector, where the ranks of a group have pools of their own.

It reads its part of each block from those ranks of another group that have it, over any transport. Whether
a block is right only its leader can tell, from the sums of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

from baton_core.errors import IncompatibleWorkerError, InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import RankPlace
from baton_core.ranks.transfer_plan import block_part, block_parts, plan_reads, require_separable
from baton_core.worker.worker_events import Pull, PullAborted, PullDone
from baton_kv.connector import InvalidBlocksError, KVConnector, VerifiesBy
from baton_kv.description import decode_group
from baton_kv.head_sums import HeadSums
from baton_kv.joined_pull import JoinedPull
from baton_kv.part_reads import PartRead
from baton_kv.pool_bytes import open_pool
from baton_kv.running_pull import RunningPull, require_in_range

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from baton_kv.pool_memory import Lend

SUM_BYTES: Final = 4 << 20
"""After so many bytes a `poll` adds up no more blocks."""


class RankConnector(KVConnector):
    """The connector of the rank at `place`, given the `spec` of whole blocks.

    `make_inner` makes the transport for a pool of this rank's part. A pull and a request for checksums are
    those of the group, and their answers tell of this rank's part: what `compute_checksums` returns, and
    `PullDone.sums`, are its shares.

    Raises:
        InvalidConfigError: ranks cannot hold this cache in parts.
    """

    def __init__(
        self,
        spec: KVSpec,
        place: RankPlace,
        make_inner: Callable[[KVSpec], KVConnector],
    ) -> None:
        require_separable(spec, place.sizes)
        self._whole = spec
        self._place = place
        self._part = block_part(spec, place)
        self._own = self._part.spec(spec)
        self._inner = make_inner(self._own)
        self.capabilities = self._inner.capabilities
        self._sums: HeadSums | None = None
        self._peers: dict[str, list[str]] = {}
        """Names that the producer's ranks have at the transport, by the producer's."""
        self._ids = count(1)
        self._parts: dict[int, JoinedPull] = {}
        """The pull that each of the transport's belongs to."""
        self._to_sum: dict[int, tuple[JoinedPull, list[int]]] = {}
        """Pulls whose bytes are here, and the shares known so far."""
        self._ended: list[PullDone] = []

    def allocate(self, num_blocks: int, lend: Lend | None = None) -> torch.Tensor:
        """Place this rank's pool; its blocks are its parts of the group's."""
        pool = self._inner.allocate(num_blocks, lend)
        self._take_pool(pool)
        return pool

    def register(self, pool: torch.Tensor) -> None:
        self._inner.register(pool)
        self._take_pool(pool)

    def describe(self) -> bytes:
        """Describe this rank's pool alone."""
        return self._inner.describe()

    def connect(self, peer_id: str, description: bytes, part: PartRead | None = None) -> None:
        """Open the pools of those ranks of a group that have what this one needs."""
        assert part is None, "the plan says what is read"
        self.disconnect(peer_id)
        group = decode_group(description, self._whole)
        producers = block_parts(self._whole, group.sizes)
        try:
            plan = plan_reads(
                self._whole, producers, block_parts(self._whole, self._place.sizes), self._place.rank
            )
        except InvalidConfigError as error:
            raise IncompatibleWorkerError(f"sizes of the peer's group: {error}") from None
        names = self._peers[peer_id] = [f"{peer_id}/{rank}" for rank in plan]
        try:
            for name, (rank, ranges) in zip(names, plan.items(), strict=True):
                read = PartRead(producers[rank].spec(self._whole), ranges)
                self._inner.connect(name, group.members[rank], read)
        except Exception:
            self.disconnect(peer_id)
            raise

    def compute_checksums(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        if self.capabilities.verifies_by is VerifiesBy.CONFIRMATION:
            return self._inner.compute_checksums(block_ids)
        require_in_range("block_id", block_ids, self.num_blocks)
        return tuple(self._shares(block_ids))

    def pull(self, pull: Pull) -> None:
        peer_id = pull.source.worker_id
        names = self._peers.get(peer_id)
        if names is None:
            error = InvalidBlocksError("source", peer_id, f"one of {sorted(self._peers)}")
            self._ended.append(RunningPull(pull).end(str(error)))
            return
        parts = {next(self._ids): name for name in names}
        joined = JoinedPull(pull, parts)
        for part, name in parts.items():
            self._parts[part] = joined
            self._inner.pull(replace(pull, pull_id=part, source=replace(pull.source, worker_id=name)))

    def poll(self) -> list[PullDone]:
        for done in self._inner.poll():
            joined = self._parts.pop(done.pull_id)
            if joined.end_part(done.pull_id, done):
                self._take(joined)
        self._add_up()
        ended, self._ended = self._ended, []
        return ended

    def wait(self, timeout_s: float | None = None) -> None:
        self._inner.wait(0.0 if self._to_sum or self._ended else timeout_s)

    def wake(self) -> None:
        self._inner.wake()

    def abort(self, pull_id: int) -> PullAborted:
        self._to_sum.pop(pull_id, None)
        self._ended = [done for done in self._ended if done.pull_id != pull_id]
        parts = [part for part, joined in self._parts.items() if joined.request.pull_id == pull_id]
        for part in parts:
            self._parts[part].is_aborted = True
            if self._inner.abort(part).is_fenced:
                self._parts.pop(part).end_part(part, None)
        return PullAborted(pull_id=pull_id, is_fenced=not any(part in self._parts for part in parts))

    def transport_of(self, peer_id: str) -> str:
        return self._inner.transport_of(self._peers[peer_id][0])

    def gone_peers(self) -> list[str]:
        gone = set(self._inner.gone_peers())
        return [peer_id for peer_id, names in self._peers.items() if not gone.isdisjoint(names)]

    def disconnect(self, peer_id: str) -> None:
        for name in self._peers.pop(peer_id, ()):
            self._inner.disconnect(name)

    def close(self) -> None:
        self._inner.close()

    def _take_pool(self, pool: torch.Tensor) -> None:
        self.num_blocks = len(pool)
        self._sums = HeadSums(open_pool(pool), self._part.cells(self._whole))

    def _take(self, joined: JoinedPull) -> None:
        """Take a pull that has ended at the transport."""
        if joined.error or self.capabilities.verifies_by is VerifiesBy.CONFIRMATION:
            self._ended.append(joined.end())
        else:
            self._to_sum[joined.request.pull_id] = joined, []

    def _add_up(self) -> None:
        """Add up some of what has arrived."""
        left = max(1, SUM_BYTES // max(1, self._own.block_bytes))
        for joined, sums in list(self._to_sum.values()):
            blocks = joined.request.blocks[len(sums) : len(sums) + left]
            sums += self._shares([block.local_block_id for block in blocks])
            left -= len(blocks)
            if len(sums) == len(joined.request.blocks):
                del self._to_sum[joined.request.pull_id]
                self._ended.append(joined.end(sums=tuple(sums)))

    def _shares(self, block_ids: Sequence[int]) -> list[int]:
        assert self._sums is not None, "the pool is allocated first"
        return list(map(self._sums.of, block_ids))
