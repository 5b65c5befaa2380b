"""Reservations of a decode worker: prompts whose blocks come from elsewhere.

A reservation is a sequence in state PULLING. Its block tables mix blocks that were here, blocks that
another reservation is importing already, and blocks of its own transfer. If a block is lost the tables are
cut before it, and the scheduler computes the rest: no content is ever in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from baton_core.blocks.block_pool import BlockPool, BlockState
from baton_core.errors import OverloadedError
from baton_core.kv_events.cache_events import BlockContent
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.kv_layout.paging import NO_BLOCK, Place
from baton_core.requests.attempt_names import is_probe
from baton_core.sessions.peer_messages import ToConsumer
from baton_core.sessions.router_messages import KVSource, Transferred
from baton_core.worker.learned_rates import LearnedRates
from baton_core.worker.sequence import Sequence, SequenceInput
from baton_core.worker.worker_events import Pull, PullAborted, PullDone, WorkerEffect
from baton_decode.core.transfer import TERMINAL, PullTimings, Transfer, TransferStep


@dataclass(slots=True, kw_only=True)
class Reservation:
    """A prompt that waits for blocks, and perhaps for its first token."""

    seq: Sequence
    pending: set[int]
    """Blocks of its tables that may not be read yet."""
    imported: frozenset[int]
    """Blocks that its own transfer brings."""
    copied_s: float = 0.0
    """Time in which its own transfer copied blocks, one or several at once."""
    num_arrived: int = 0
    """Number of pulled blocks that are here and right."""
    is_cut_by_cancel: bool = False
    """True if it lost blocks that a request which is cancelled was to bring."""
    first_tokens: dict[int, int] | None = None
    """First token of each sequence to decode, once the router has said them."""
    _num_copies: int = 0
    """Copies that are under way."""
    _copying_since_s: float = 0.0

    @property
    def is_ready(self) -> bool:
        """True if every block of the tables may be read; the tables may have been cut."""
        return not self.pending

    def begin_copy(self, now: float) -> None:
        """A copy of its transfer is under way."""
        if not self._num_copies:
            self._copying_since_s = now
        self._num_copies += 1

    def end_copy(self, now: float) -> None:
        """A copy has ended; without others under way, so has the time that counts."""
        self._num_copies -= 1
        if not self._num_copies:
            self.copied_s += now - self._copying_since_s


class KvPulls:
    """Reservations and transfers of one worker."""

    def __init__(
        self,
        pool: BlockPool,
        rates: LearnedRates,
        *,
        worker_id: str,
        epoch: int,
        kv_spec: KVSpec,
        timings: PullTimings,
        is_verified_by_checksum: bool,
    ) -> None:
        self._pool = pool
        self._rates = rates
        self._paging = kv_spec.paging
        self._block_bytes = kv_spec.block_bytes
        self._is_verified_by_checksum = is_verified_by_checksum
        self._worker_id = worker_id
        self._name = f"{worker_id}-{epoch:x}"
        self._timings = timings
        self._reservations: dict[str, Reservation] = {}
        self._transfers: dict[str, Transfer] = {}
        self._transfer_of_pull: dict[int, str] = {}
        self._num_pulls = 0
        self._num_transfers = 0

    @property
    def num_transfers(self) -> int:
        """Transfers that are not terminal, those being drained included."""
        return len(self._transfers)

    @property
    def num_reserved_blocks(self) -> int:
        return len({block for r in self._reservations.values() for block in r.seq.tables.held()})

    def get(self, request_id: str) -> Reservation | None:
        return self._reservations.get(request_id)

    def request_of(self, transfer_id: str) -> str:
        """The request that a transfer is for; empty once it is over."""
        transfer = self._transfers.get(transfer_id)
        return transfer.request_id if transfer else ""

    def reserve(
        self, now: float, seq: Sequence, source: KVSource, held: Mapping[int, int], *, is_producing: bool
    ) -> list[WorkerEffect]:
        """Take the prompt's blocks and start pulling those that are not here.

        At most half of the pool may be reserved; one request alone may take more, unless this worker computes
        prompts that others pull: two such workers could wait for each other's blocks. A prompt whose source
        is this worker itself takes the blocks that are `held` for it, by their places, and pulls nothing.

        Raises:
            OverloadedError: the blocks do not fit now.
        """
        is_own = source.worker_id == self._worker_id
        places = self._paging.prompt_places(seq.num_initial_tokens)
        is_over_half = self.num_reserved_blocks + len(places) > self._pool.num_blocks // 2
        is_refused = is_over_half and not is_own and (is_producing or bool(self._reservations))
        wanted = None if is_refused else self._build_tables(seq, places, held if is_own else {})
        if wanted is None:
            raise OverloadedError(f"{self._pool.num_available} of {self._pool.num_blocks} blocks are free")
        missing = {place.index for place in places if place.number in wanted}
        num_here = len({place.index for place in places} - missing)
        seq.num_computed_tokens = 0
        seq.num_cached_tokens = min(num_here * self._paging.block_size, seq.num_initial_tokens)
        if not is_probe(seq.seq_id.request_id):
            self._pool.cache.note_lookup(seq.num_initial_tokens, seq.num_cached_tokens)
        self._reservations[seq.seq_id.request_id] = Reservation(
            seq=seq,
            pending={block_id for block_id in seq.tables.held() if not self._pool.is_valid(block_id)},
            imported=frozenset(wanted.values()),
        )
        return self._begin(now, seq.seq_id.request_id, source, wanted) if wanted else []

    def require_room(self, num_needed: int) -> None:
        """Refuse a prompt of so many blocks, for others to pull, that would wait for a large reservation.

        Raises:
            OverloadedError: it does not fit beside what is reserved.
        """
        num_blocks, num_reserved = self._pool.num_blocks, self.num_reserved_blocks
        if num_reserved > num_blocks // 2 and num_reserved + num_needed > num_blocks:
            raise OverloadedError(f"{num_reserved} of {num_blocks} blocks are reserved")

    def ready(self) -> list[tuple[str, dict[int, int]]]:
        """Requests that have both their blocks and their first tokens, with the tokens."""
        return [
            (request_id, reservation.first_tokens)
            for request_id, reservation in self._reservations.items()
            if reservation.is_ready and reservation.first_tokens is not None
        ]

    def start(self, now: float, request_id: str) -> Transferred:
        """End a reservation that is ready: its sequence may be scheduled."""
        reservation = self._reservations.pop(request_id)
        seq = reservation.seq
        seq.num_computed_tokens = min(
            seq.tables.num_entries * self._paging.block_size, seq.num_initial_tokens
        )
        seq.apply(now, SequenceInput.START)
        return Transferred(
            request_id=request_id,
            num_blocks=reservation.num_arrived,
            num_bytes=reservation.num_arrived * self._block_bytes,
            transfer_s=reservation.copied_s,
            num_recomputed_tokens=seq.num_initial_tokens - seq.num_computed_tokens,
            is_cancel_the_cause=reservation.is_cut_by_cancel,
        )

    def cancel(self, now: float, request_id: str) -> list[WorkerEffect]:
        """Drop a reservation. Its transfer goes on only for blocks that others wait for."""
        reservation = self._reservations.pop(request_id, None)
        if reservation is None:
            return []
        seq = reservation.seq
        seq.apply(now, SequenceInput.END)
        self._pool.release(seq.tables.cut(0))
        transfer = next((t for t in self._transfers.values() if t.request_id == request_id), None)
        if transfer is None or self._is_awaited(transfer.in_flight_blocks):
            return []
        return self._take(now, transfer, transfer.give_up(now, "the request was cancelled"))

    def on_event(self, now: float, event: PullDone | PullAborted) -> list[WorkerEffect]:
        """Take what became of a copy."""
        match event:
            case PullDone():
                return self.on_pull_done(now, event)
            case PullAborted():
                return self.on_pull_aborted(now, event)
        assert_never(event)

    def on_message(self, now: float, message: ToConsumer) -> list[WorkerEffect]:
        """Take a producer's answer; one for a transfer that is over changes nothing."""
        transfer = self._transfers.get(message.transfer_id)
        return self._take(now, transfer, transfer.on_message(now, message)) if transfer else []

    def on_pull_done(self, now: float, event: PullDone) -> list[WorkerEffect]:
        is_whole = not event.failed_block_ids and not event.error
        self._rates.end_pull(now, event.pull_id, is_whole=is_whole)
        transfer = self._transfers.get(self._transfer_of_pull.pop(event.pull_id, ""))
        if transfer is None:
            return []
        self._end_copy(now, transfer)
        step = transfer.on_pull_done(now, event.pull_id, event.failed_block_ids, event.error)
        return self._take(now, transfer, step)

    def on_pull_aborted(self, now: float, event: PullAborted) -> list[WorkerEffect]:
        transfer = self._transfers.get(self._transfer_of_pull.get(event.pull_id, ""))
        if transfer is None:
            return []
        if event.is_fenced:
            del self._transfer_of_pull[event.pull_id]
            self._rates.end_pull(now, event.pull_id, is_whole=False)
            self._end_copy(now, transfer)
        return self._take(
            now, transfer, transfer.on_pull_aborted(now, event.pull_id, is_fenced=event.is_fenced)
        )

    def next_deadline(self) -> float | None:
        deadlines = (transfer.next_deadline() for transfer in self._transfers.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_deadline(self, now: float) -> list[WorkerEffect]:
        effects = []
        for transfer in list(self._transfers.values()):
            deadline = transfer.next_deadline()
            if deadline is not None and deadline <= now:
                effects += self._take(now, transfer, transfer.on_deadline(now))
        return effects

    def check_invariants(self) -> None:
        """Raise AssertionError when a block awaited by a transfer is not importing, or the reverse."""
        owned = [block for transfer in self._transfers.values() for block in transfer.in_flight_blocks]
        assert len(owned) == len(set(owned)), "a block is imported twice"
        written = self._pool.blocks_in(BlockState.PULLING, BlockState.QUARANTINED)
        assert written == set(owned), f"written {sorted(written)}, awaited {sorted(owned)}"

    # --- parts ---

    def _build_tables(
        self, seq: Sequence, places: list[Place], held: Mapping[int, int]
    ) -> dict[int, int] | None:
        """Fill the block tables; returns number of the place to block of what has to be pulled."""
        hashes = [self._find_hash(seq, place) for place in places]
        found = [
            held.get(place.number, self._find(block_hash))
            for place, block_hash in zip(places, hashes, strict=True)
        ]
        here = [block_id for block_id in found if block_id is not None]
        self._pool.share(here)
        missing = [name for name, block_id in zip(hashes, found, strict=True) if block_id is None]
        imported = self._pool.begin_pull(missing, self._contents(seq, places, hashes))
        if imported is None:
            self._pool.release(here)
            return None
        self._pool.share(imported)
        numbers = (place.number for place, block_id in zip(places, found, strict=True) if block_id is None)
        wanted = dict(zip(numbers, imported, strict=True))
        for group in range(len(self._paging.windows)):
            first = self._paging.first_visible(group, seq.num_initial_tokens)
            blocks = [
                wanted[place.number] if block_id is None else block_id
                for place, block_id in zip(places, found, strict=True)
                if place.group == group
            ]
            seq.tables.fill(group, first, blocks)
        return wanted

    def _find_hash(self, seq: Sequence, place: Place) -> bytes | None:
        """A partial block has none."""
        hashes = seq.hashes(place.group)
        return hashes[place.index] if place.index < len(hashes) else None

    def _contents(
        self, seq: Sequence, places: list[Place], hashes: list[bytes | None]
    ) -> dict[bytes, BlockContent]:
        """By hash; of nothing where nobody is told of it."""
        contents: dict[bytes, BlockContent] = {}
        for place, block_hash in zip(places, hashes, strict=True):
            if block_hash is not None and (content := seq.content(place.index, place.group)) is not None:
                contents[block_hash] = content
        return contents

    def _find(self, block_hash: bytes | None) -> int | None:
        if block_hash is None:
            return None
        block_id = self._pool.cache.find(block_hash)
        return self._pool.cache.find_pulling(block_hash) if block_id is None else block_id

    def _begin(
        self, now: float, request_id: str, source: KVSource, wanted: dict[int, int]
    ) -> list[WorkerEffect]:
        if source.worker_id == self._worker_id:
            self._recompute(set(wanted.values()))
            return []
        self._num_transfers += 1
        transfer = Transfer(
            f"{self._name}-{self._num_transfers}",
            request_id,
            source,
            wanted,
            is_verified_by_checksum=self._is_verified_by_checksum,
            next_pull_id=self._next_pull_id,
            timings=self._timings,
        )
        self._transfers[transfer.transfer_id] = transfer
        return self._take(now, transfer, transfer.start(now))

    def _recompute(self, missing: set[int]) -> None:
        """Give up blocks whose source is this worker itself: what it no longer has is computed again."""
        self._settle_tables(set(), missing)
        for block_id in missing:
            self._pool.discard(block_id)

    def _next_pull_id(self) -> int:
        self._num_pulls += 1
        return self._num_pulls

    def _take(self, now: float, transfer: Transfer, step: TransferStep) -> list[WorkerEffect]:
        """Apply what a transfer decided to the pool and to the tables that wait for its blocks."""
        for block_id in step.valid:
            self._pool.verify(block_id)
        is_cancelled = transfer.request_id not in self._reservations
        self._settle_tables(set(step.valid), {*step.lost, *step.quarantined}, is_cancelled=is_cancelled)
        for block_id in step.lost:
            self._pool.discard(block_id)
        for block_id in step.quarantined:
            self._pool.quarantine(block_id)
        for block_id in step.fenced:
            self._pool.fence(block_id)
        for effect in step.effects:
            if isinstance(effect, Pull):
                self._transfer_of_pull[effect.pull_id] = transfer.transfer_id
                if (reservation := self._reservations.get(transfer.request_id)) is not None:
                    reservation.begin_copy(now)
                num_bytes = len(effect.blocks) * self._block_bytes
                self._rates.begin_pull(now, effect.pull_id, effect.source, num_bytes)
        if transfer.state in TERMINAL:
            del self._transfers[transfer.transfer_id]
        return list(step.effects)

    def _end_copy(self, now: float, transfer: Transfer) -> None:
        if (reservation := self._reservations.get(transfer.request_id)) is not None:
            reservation.end_copy(now)

    def _settle_tables(self, valid: set[int], lost: set[int], *, is_cancelled: bool = False) -> None:
        """Tell the reservations which of their blocks arrived; cut the tables of those that lost one."""
        for reservation in self._reservations.values():
            if reservation.is_ready or reservation.pending.isdisjoint(valid | lost):
                continue
            if reservation.pending & lost:
                self._cut(reservation.seq, lost)
                reservation.is_cut_by_cancel = is_cancelled
            reservation.num_arrived += len(reservation.imported & valid)
            reservation.pending -= valid
            reservation.pending &= set(reservation.seq.tables.held())

    def _cut(self, seq: Sequence, lost: set[int]) -> None:
        """Shorten the tables to the longest prefix that needs no lost block."""
        gone = {NO_BLOCK, *lost}
        limit = seq.num_initial_tokens // self._paging.block_size
        length = self._paging.longest_prefix(
            min(limit, seq.tables.num_entries), lambda group, index: seq.tables[group][index] not in gone
        )
        self._pool.release(seq.tables.cut(length))

    def _is_awaited(self, block_ids: Iterable[int]) -> bool:
        waiting = {block for r in self._reservations.values() for block in r.seq.tables.held()}
        return any(block_id in waiting for block_id in block_ids)
