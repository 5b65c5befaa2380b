"""The producer's end of the TCP transport: every consumer fetches blocks from here.

What comes over the network is checked, never trusted: whatever it says, only blocks of the pool are read.
Chunks on their way out are bounded by consumer, open fetches over all.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, assert_never

from baton_kv.connector import InvalidBlocksError
from baton_kv.part_reads import PoolPart
from baton_kv.pool_bytes import PoolBytes
from baton_kv.pull_chunks import ChunkPlan
from baton_kv.running_pull import require_in_range
from baton_kv.tcp_connections import ConsumerConnections
from baton_kv.tcp_messages import (
    MAX_GRANTED,
    MAX_RANGES,
    ChunkSent,
    Drop,
    Fetch,
    FetchEnded,
    Grant,
    ToProducer,
)

MAX_FETCHES: Final = 1024
"""Open at a time, over all consumers."""


@dataclass(slots=True)
class _Serving:
    """A fetch with chunks left to send."""

    block_ids: tuple[int, ...]
    blocks: PoolBytes
    """The pool, or the part of it that is fetched."""
    plan: ChunkPlan
    num_granted: int
    """Chunks that may be sent now."""
    deadline: float
    next_chunk: int = 0


@dataclass(slots=True)
class _Consumer:
    fetches: dict[int, _Serving] = field(default_factory=dict)

    @property
    def num_granted(self) -> int:
        return sum(serving.num_granted for serving in self.fetches.values())

    def next_fetch(self) -> int | None:
        """The earliest fetch that a chunk may be sent of."""
        return next((name for name, serving in self.fetches.items() if serving.num_granted), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPool:
    """A pool, and what a consumer must name to read of it."""

    blocks: PoolBytes
    head_bytes: int
    """Size of the pieces that parts of blocks are made of."""
    epoch: int
    token: str


class BlockServer:
    """Serves the blocks of a pool to the consumers at the other ends of `connections`.

    A fetch that makes no progress for `idle_s` is dropped.
    """

    def __init__(self, connections: ConsumerConnections, served: ServedPool, *, idle_s: float) -> None:
        self.connections = connections
        self._served = served
        self._idle_s = idle_s
        self._consumers: OrderedDict[bytes, _Consumer] = OrderedDict()

    @property
    def can_send(self) -> bool:
        """True if `advance` would send a chunk."""
        return self._next() is not None

    def next_deadline(self) -> float | None:
        """The time when `advance` is due, whatever the connections bring."""
        return min((s.deadline for p in self._consumers.values() for s in p.fetches.values()), default=None)

    def advance(self, now: float) -> None:
        """Take some of what consumers ask for, send one chunk, and end what takes too long."""
        self._take_messages(now)
        self._send_chunk(now)
        self._drop_idle(now)

    def _take_messages(self, now: float) -> None:
        for consumer_id, message in self.connections.receive():
            if message is None:
                self._consumers.pop(consumer_id, None)
            else:
                self._take(now, consumer_id, message)

    def _send_chunk(self, now: float) -> None:
        """Send one chunk to the consumer whose turn it is, if any may have one."""
        if (chosen := self._next()) is None:
            return
        consumer_id, fetch_id = chosen
        self._consumers.move_to_end(consumer_id)
        serving = self._consumers[consumer_id].fetches[fetch_id]
        chunk = serving.plan[serving.next_chunk]
        message = ChunkSent(fetch_id, serving.next_chunk)
        serving.next_chunk += 1
        serving.num_granted -= 1
        serving.deadline = now + self._idle_s
        if serving.next_chunk == len(serving.plan):
            self._forget(consumer_id, fetch_id)
        if not self.connections.send_chunk(
            consumer_id, message, serving.blocks, serving.block_ids[chunk.blocks], chunk.columns
        ):
            self._consumers.pop(consumer_id, None)

    def _drop_idle(self, now: float) -> None:
        """End the fetches whose consumers have been silent for too long."""
        for consumer_id, consumer in list(self._consumers.items()):
            for fetch_id, serving in list(consumer.fetches.items()):
                if serving.deadline <= now:
                    self._end(consumer_id, fetch_id, f"no chunk was taken for {self._idle_s:g} s")

    def _take(self, now: float, consumer_id: bytes, message: ToProducer) -> None:
        match message:
            case Fetch(fetch_id=fetch_id):
                if (why := self._fault_of(consumer_id, message)) is not None:
                    self._send(consumer_id, FetchEnded(fetch_id, why))
                    return
                blocks = self._served.blocks
                if message.ranges:
                    blocks = PoolPart(blocks, [slice(*one) for one in message.ranges])
                plan = ChunkPlan(len(message.block_ids), blocks.block_bytes)
                serving = _Serving(message.block_ids, blocks, plan, message.num_chunks, now + self._idle_s)
                self._consumers.setdefault(consumer_id, _Consumer()).fetches[fetch_id] = serving
            case Grant(fetch_id=fetch_id, num_chunks=num_chunks):
                self._grant(now, consumer_id, fetch_id, num_chunks)
            case Drop(fetch_id=fetch_id):
                self._end(consumer_id, fetch_id, "dropped")
            case _:
                assert_never(message)

    def _fault_of(self, consumer_id: bytes, fetch: Fetch) -> str | None:
        """The reason why a fetch is refused; None if it is not."""
        if fetch.epoch != self._served.epoch:
            return f"epoch is {fetch.epoch}; allowed: that of the worker which runs now"
        if not hmac.compare_digest(fetch.token.encode(), self._served.token.encode()):
            return "token is not that of this pool; allowed: the one in its description"
        if not 1 <= len(fetch.block_ids) <= len(self._served.blocks):
            return f"number of blocks is {len(fetch.block_ids)}; allowed: 1 to {len(self._served.blocks)}"
        if (fault := self._fault_of_ranges(fetch.ranges)) is not None:
            return fault
        try:
            require_in_range("block_id", fetch.block_ids, len(self._served.blocks))
        except InvalidBlocksError as error:
            return str(error)
        consumer = self._consumers.get(consumer_id, _Consumer())
        if fetch.fetch_id in consumer.fetches:
            return f"fetch_id is {fetch.fetch_id}; allowed: one that is not open"
        if consumer.num_granted + fetch.num_chunks > MAX_GRANTED:
            return _too_many_granted(consumer.num_granted + fetch.num_chunks)
        if sum(len(consumer.fetches) for consumer in self._consumers.values()) >= MAX_FETCHES:
            return f"{MAX_FETCHES} fetches are open; allowed: {MAX_FETCHES}"
        return None

    def _fault_of_ranges(self, ranges: tuple[tuple[int, int], ...]) -> str | None:
        size, head_bytes = self._served.blocks.block_bytes, self._served.head_bytes
        edges = [0, *chain.from_iterable(ranges), size]
        is_sound = edges == sorted(edges) and all(start < end for start, end in ranges)
        if is_sound and len(ranges) <= MAX_RANGES and not any(edge % head_bytes for edge in edges):
            return None
        allowed = f"up to {MAX_RANGES}, ascending, of heads of {head_bytes} bytes within {size}"
        return f"ranges are {', '.join(map(str, ranges[:4]))}; allowed: {allowed}"

    def _grant(self, now: float, consumer_id: bytes, fetch_id: int, num_chunks: int) -> None:
        consumer = self._consumers.get(consumer_id, _Consumer())
        serving = consumer.fetches.get(fetch_id)
        num_granted = consumer.num_granted + num_chunks
        if serving is None:
            self._end(consumer_id, fetch_id, "it is not open")
        elif num_granted > MAX_GRANTED:
            self._end(consumer_id, fetch_id, _too_many_granted(num_granted))
        else:
            serving.num_granted += num_chunks
            serving.deadline = now + self._idle_s

    def _next(self) -> tuple[bytes, int] | None:
        """The consumer whose turn it is, and its fetch."""
        for consumer_id, consumer in self._consumers.items():
            fetch_id = consumer.next_fetch()
            if fetch_id is not None and self.connections.can_take(consumer_id):
                return consumer_id, fetch_id
        return None

    def _end(self, consumer_id: bytes, fetch_id: int, reason: str) -> None:
        self._forget(consumer_id, fetch_id)
        self._send(consumer_id, FetchEnded(fetch_id, reason))

    def _forget(self, consumer_id: bytes, fetch_id: int) -> None:
        consumer = self._consumers.get(consumer_id, _Consumer())
        consumer.fetches.pop(fetch_id, None)
        if not consumer.fetches:
            self._consumers.pop(consumer_id, None)

    def _send(self, consumer_id: bytes, message: FetchEnded) -> None:
        if not self.connections.send(consumer_id, message):
            self._consumers.pop(consumer_id, None)


def _too_many_granted(num_chunks: int) -> str:
    return f"number of chunks granted is {num_chunks}; allowed: at most {MAX_GRANTED} at a time"
