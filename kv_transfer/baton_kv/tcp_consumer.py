"""The consumer's end of the TCP transport: one connection to one producer, and the pulls that use it.

A link lives as long as its connection and is never mended: what is lost with it ends in an error, and the
next pull makes a new one. So a chunk can only belong to a pull of the connection it came over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import msgspec

from baton_core.worker.worker_events import Pull, PullDone
from baton_kv.landing import Landing
from baton_kv.part_reads import PartRead
from baton_kv.pull_chunks import Chunk, ChunkPlan
from baton_kv.running_pull import RunningPull
from baton_kv.tcp_connections import MAX_MESSAGES, File, ProducerConnection
from baton_kv.tcp_messages import (
    MAX_GRANTED,
    ChunkSent,
    Drop,
    Fetch,
    FetchEnded,
    Grant,
    ToConsumer,
)


class _Fetch(RunningPull):
    """A pull that is fetched chunk by chunk."""

    def __init__(self, pull: Pull, block_bytes: int) -> None:
        super().__init__(pull)
        self.plan = ChunkPlan(len(pull.blocks), block_bytes)
        self.num_granted = 0
        self.num_received = 0
        self.is_dropped = False

    def local_ids(self, chunk: Chunk) -> list[int]:
        return [block.local_block_id for block in self.request.blocks[chunk.blocks]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerAddress:
    """The producer at the other end of a link."""

    name: str
    """For errors."""
    endpoint: str
    token: str
    """The token from its description, which every fetch shows."""


class ProducerLink:
    """Fetches blocks over `connection`.

    `landing` puts verified and unverified blocks alike where they belong; `on_end` takes the outcomes. Where
    a `part` of each block is read, nothing is verified. A producer from which nothing comes for `silence_s`,
    while chunks are awaited, is given up.
    """

    def __init__(
        self,
        connection: ProducerConnection,
        producer: ProducerAddress,
        landing: Landing,
        part: PartRead | None = None,
        *,
        silence_s: float,
        on_end: Callable[[PullDone], None],
    ) -> None:
        self.is_open = True
        self._connection = connection
        self._producer = producer
        self._landing = landing
        self._part = part
        self._block_bytes = landing.block_bytes
        self._silence_s = silence_s
        self._on_end = on_end
        self._fetches: OrderedDict[int, _Fetch] = OrderedDict()
        self._num_fetches = 0
        self._arriving: int | None = None
        """The fetch whose chunk is being written to its place."""
        self._heard_at = 0.0

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        """The files to wait for."""
        return self._connection.files

    def add(self, now: float, pull: Pull) -> None:
        """Fetch the blocks of a pull that names at least one, after those added before."""
        self._num_fetches += 1
        self._fetches[self._num_fetches] = _Fetch(pull, self._block_bytes)
        self._grant(now)

    def drop(self, pull_id: int) -> None:
        """Forget a pull: chunks of it that still come are thrown away."""
        for fetch_id, fetch in self._fetches.items():
            if fetch.request.pull_id == pull_id and not fetch.is_dropped:
                fetch.is_dropped = True
                if fetch_id == self._arriving:
                    self._connection.discard()
                if fetch.num_granted:
                    self._connection.send(Drop(fetch_id))
                else:
                    del self._fetches[fetch_id]
                return

    def next_deadline(self) -> float | None:
        """The time when `advance` is due, whatever the connection brings."""
        return self._heard_at + self._silence_s if self._num_awaited else None

    def advance(self, now: float) -> None:
        """Take what has come, up to one chunk; close the link when the producer is lost."""
        self._take_messages(now)
        if not self.is_open:
            return
        if (deadline := self.next_deadline()) is not None and deadline <= now:
            self._give_up(f"has sent nothing for {self._silence_s:g} s")
        else:
            self._grant(now)

    def close(self, error: str) -> None:
        """Close the connection, if it is open; every pull in flight ends with `error`."""
        if self.is_open:
            self._close(lambda _: error)

    # --- granting ---

    @property
    def _num_awaited(self) -> int:
        """Chunks that the producer may send now."""
        return sum(fetch.num_granted - fetch.num_received for fetch in self._fetches.values())

    def _grant(self, now: float) -> None:
        """Keep `MAX_GRANTED` chunks on their way: those of the earliest pulls."""
        num_awaited = self._num_awaited
        for fetch_id, fetch in self._fetches.items():
            more = min(MAX_GRANTED - num_awaited, len(fetch.plan) - fetch.num_granted)
            if num_awaited == MAX_GRANTED:
                return
            if fetch.is_dropped or not more:
                continue
            if not num_awaited:
                self._heard_at = now
            if fetch.num_granted:
                self._connection.send(Grant(fetch_id, more))
            else:
                block_ids = tuple(block.remote_block_id for block in fetch.request.blocks)
                epoch, ranges = fetch.request.source.epoch, self._part.sources if self._part else ()
                self._connection.send(Fetch(fetch_id, self._producer.token, epoch, block_ids, more, ranges))
                fetch.start()
            fetch.num_granted += more
            num_awaited += more

    # --- what comes ---

    def _take_messages(self, now: float) -> None:
        for _ in range(MAX_MESSAGES):
            try:
                message = self._connection.receive(self._place)
                if message is None:
                    return
                self._heard_at = now
                match message:
                    case ChunkSent():
                        self._take_chunk(message)
                        return
                    case FetchEnded(fetch_id=fetch_id, reason=reason):
                        self._take_end(fetch_id, reason)
                    case _:
                        assert_never(message)
            except OSError:
                self._give_up("is gone")
                return
            except (ValueError, msgspec.MsgspecError) as error:
                self._give_up(f"does not keep to the protocol ({error})")
                return

    def _place(self, message: ToConsumer, num_bytes: int) -> Iterable[memoryview]:
        """Return the memory for the next chunk of a fetch.

        Raises:
            ValueError: it is another, or has another size.
        """
        if isinstance(message, FetchEnded):
            _require_size(message, num_bytes, 0)
            return ()
        fetch = self._fetches.get(message.fetch_id)
        if fetch is None or message.number != fetch.num_received or message.number == fetch.num_granted:
            raise ValueError(f"{message} was not asked for")
        chunk = fetch.plan[message.number]
        _require_size(message, num_bytes, chunk.num_bytes)
        if fetch.is_dropped:
            return ()
        self._arriving = message.fetch_id
        return self._landing.place(fetch.local_ids(chunk), chunk.columns)

    def _take_chunk(self, message: ChunkSent) -> None:
        """Take a chunk that lies in its place."""
        fetch = self._fetches[message.fetch_id]
        self._arriving = None
        chunk = fetch.plan[message.number]
        fetch.num_received += 1
        if not fetch.is_dropped:
            fetch.num_bytes += chunk.num_bytes
            if chunk.columns.stop == self._block_bytes:
                local_ids = fetch.local_ids(chunk)
                if self._part is None:
                    fetch.verify(fetch.request.blocks[chunk.blocks], self._landing.rows(local_ids))
                self._landing.land(local_ids)
        if fetch.num_received == len(fetch.plan):
            del self._fetches[message.fetch_id]
            self._end(fetch)

    def _take_end(self, fetch_id: int, reason: str) -> None:
        fetch = self._fetches.pop(fetch_id, None)
        if fetch is not None:
            self._end(fetch, f"{self._producer.name} refused: {reason}")

    # --- ends ---

    def _give_up(self, why: str) -> None:
        self._close(lambda fetch: f"{self._producer.name} {why}; waited for {self._awaited_of(fetch)}")

    def _awaited_of(self, fetch: _Fetch) -> str:
        if not self._connection.is_connected:
            return f"a connection to {self._producer.endpoint}"
        return f"chunk {fetch.num_received + 1} of {len(fetch.plan)} from {self._producer.endpoint}"

    def _close(self, error_of: Callable[[_Fetch], str]) -> None:
        ends = [(fetch, error_of(fetch)) for fetch in self._fetches.values()]
        self.is_open = False
        self._connection.close()
        self._fetches.clear()
        for fetch, error in ends:
            self._end(fetch, error)

    def _end(self, fetch: _Fetch, error: str = "") -> None:
        if not fetch.is_dropped:
            self._on_end(fetch.end(error))


def _require_size(message: ToConsumer, num_bytes: int, num_allowed: int) -> None:
    if num_bytes != num_allowed:
        raise ValueError(f"{message} has {num_bytes} bytes; allowed: {num_allowed}")
