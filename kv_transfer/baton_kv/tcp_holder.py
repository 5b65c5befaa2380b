"""The holder's end of the TCP transport: every puller fetches blocks from here.

What comes over the network is checked, never trusted: whatever it says, only blocks of the pool are read.
Chunks on their way out are bounded by puller, open fetches over all.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, assert_never

from baton_kv.chunks import ChunkPlan
from baton_kv.connector import InvalidBlocksError
from baton_kv.orders import require_in_range
from baton_kv.pool_bytes import PoolBytes
from baton_kv.tcp_messages import (
    MAX_GRANTED,
    ChunkSent,
    Drop,
    Fetch,
    FetchEnded,
    Grant,
    ToHolder,
)
from baton_kv.tcp_wire import PullerWires

MAX_FETCHES: Final = 1024
"""Open at a time, over all pullers."""


@dataclass(slots=True)
class _Serving:
    """A fetch with chunks left to send."""

    block_ids: tuple[int, ...]
    plan: ChunkPlan
    num_granted: int
    """Chunks that may be sent now."""
    deadline: float
    next_chunk: int = 0


@dataclass(slots=True)
class _Puller:
    fetches: dict[int, _Serving] = field(default_factory=dict)

    @property
    def num_granted(self) -> int:
        return sum(serving.num_granted for serving in self.fetches.values())

    def next_fetch(self) -> int | None:
        """The earliest fetch that a chunk may be sent of."""
        return next((name for name, serving in self.fetches.items() if serving.num_granted), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPool:
    """A pool, and what a puller must name to read of it."""

    blocks: PoolBytes
    block_bytes: int
    epoch: int
    token: str


class BlockServer:
    """Serves the blocks of a pool to the pullers at the other ends of `wires`.

    A fetch that makes no progress for `idle_s` is dropped.
    """

    def __init__(self, wires: PullerWires, served: ServedPool, *, idle_s: float) -> None:
        self.wires = wires
        self._served = served
        self._idle_s = idle_s
        self._pullers: OrderedDict[bytes, _Puller] = OrderedDict()

    @property
    def can_send(self) -> bool:
        """Whether `advance` would send a chunk."""
        return self._next() is not None

    def next_deadline(self) -> float | None:
        """When `advance` is due, whatever the wires say."""
        return min((s.deadline for p in self._pullers.values() for s in p.fetches.values()), default=None)

    def advance(self, now: float) -> None:
        """Take some of what pullers ask for, send one chunk, and end what takes too long."""
        self._take_messages(now)
        self._send_chunk(now)
        self._drop_idle(now)

    def _take_messages(self, now: float) -> None:
        for puller_id, message in self.wires.receive():
            if message is None:
                self._pullers.pop(puller_id, None)
            else:
                self._take(now, puller_id, message)

    def _send_chunk(self, now: float) -> None:
        """Send one chunk to the puller whose turn it is, if any may have one."""
        if (chosen := self._next()) is None:
            return
        puller_id, fetch_id = chosen
        self._pullers.move_to_end(puller_id)
        serving = self._pullers[puller_id].fetches[fetch_id]
        chunk = serving.plan[serving.next_chunk]
        message = ChunkSent(fetch_id, serving.next_chunk)
        serving.next_chunk += 1
        serving.num_granted -= 1
        serving.deadline = now + self._idle_s
        if serving.next_chunk == len(serving.plan):
            self._forget(puller_id, fetch_id)
        if not self.wires.send_chunk(puller_id, message, serving.block_ids[chunk.blocks], chunk.columns):
            self._pullers.pop(puller_id, None)

    def _drop_idle(self, now: float) -> None:
        """End the fetches whose pullers have been silent for too long."""
        for puller_id, puller in list(self._pullers.items()):
            for fetch_id, serving in list(puller.fetches.items()):
                if serving.deadline <= now:
                    self._end(puller_id, fetch_id, f"no chunk was taken for {self._idle_s:g} s")

    def _take(self, now: float, puller_id: bytes, message: ToHolder) -> None:
        match message:
            case Fetch(fetch_id=fetch_id):
                if (why := self._fault_of(puller_id, message)) is not None:
                    self._send(puller_id, FetchEnded(fetch_id, why))
                    return
                plan = ChunkPlan(len(message.block_ids), self._served.block_bytes)
                serving = _Serving(message.block_ids, plan, message.num_chunks, now + self._idle_s)
                self._pullers.setdefault(puller_id, _Puller()).fetches[fetch_id] = serving
            case Grant(fetch_id=fetch_id, num_chunks=num_chunks):
                self._grant(now, puller_id, fetch_id, num_chunks)
            case Drop(fetch_id=fetch_id):
                self._end(puller_id, fetch_id, "dropped")
            case _:
                assert_never(message)

    def _fault_of(self, puller_id: bytes, fetch: Fetch) -> str | None:
        """Why a fetch is refused."""
        if fetch.epoch != self._served.epoch:
            return f"epoch is {fetch.epoch}; allowed: that of the worker which runs now"
        if not hmac.compare_digest(fetch.token.encode(), self._served.token.encode()):
            return "token is not that of this pool; allowed: the one in its description"
        if not 1 <= len(fetch.block_ids) <= len(self._served.blocks):
            return f"number of blocks is {len(fetch.block_ids)}; allowed: 1 to {len(self._served.blocks)}"
        try:
            require_in_range("block_id", fetch.block_ids, len(self._served.blocks))
        except InvalidBlocksError as error:
            return str(error)
        puller = self._pullers.get(puller_id, _Puller())
        if fetch.fetch_id in puller.fetches:
            return f"fetch_id is {fetch.fetch_id}; allowed: one that is not open"
        if puller.num_granted + fetch.num_chunks > MAX_GRANTED:
            return _too_many_granted(puller.num_granted + fetch.num_chunks)
        if sum(len(puller.fetches) for puller in self._pullers.values()) >= MAX_FETCHES:
            return f"{MAX_FETCHES} fetches are open; allowed: {MAX_FETCHES}"
        return None

    def _grant(self, now: float, puller_id: bytes, fetch_id: int, num_chunks: int) -> None:
        puller = self._pullers.get(puller_id, _Puller())
        serving = puller.fetches.get(fetch_id)
        num_granted = puller.num_granted + num_chunks
        if serving is None:
            self._end(puller_id, fetch_id, "it is not open")
        elif num_granted > MAX_GRANTED:
            self._end(puller_id, fetch_id, _too_many_granted(num_granted))
        else:
            serving.num_granted += num_chunks
            serving.deadline = now + self._idle_s

    def _next(self) -> tuple[bytes, int] | None:
        """The puller whose turn it is, and its fetch."""
        for puller_id, puller in self._pullers.items():
            fetch_id = puller.next_fetch()
            if fetch_id is not None and self.wires.can_take(puller_id):
                return puller_id, fetch_id
        return None

    def _end(self, puller_id: bytes, fetch_id: int, reason: str) -> None:
        self._forget(puller_id, fetch_id)
        self._send(puller_id, FetchEnded(fetch_id, reason))

    def _forget(self, puller_id: bytes, fetch_id: int) -> None:
        puller = self._pullers.get(puller_id, _Puller())
        puller.fetches.pop(fetch_id, None)
        if not puller.fetches:
            self._pullers.pop(puller_id, None)

    def _send(self, puller_id: bytes, message: FetchEnded) -> None:
        if not self.wires.send(puller_id, message):
            self._pullers.pop(puller_id, None)


def _too_many_granted(num_chunks: int) -> str:
    return f"number of chunks granted is {num_chunks}; allowed: at most {MAX_GRANTED} at a time"
