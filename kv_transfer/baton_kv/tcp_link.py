"""The puller's end of the TCP transport: one connection to one holder, and the orders that use it.

A link lives as long as its connection and is never mended: what is lost with it ends in an error, and the
next order makes a new one. So a chunk can only belong to an order of the connection it came over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import msgspec

from baton_kv.chunks import Chunk, ChunkPlan
from baton_kv.connector import BlockCopy, PullOrder, PullOutcome
from baton_kv.landing import Landing
from baton_kv.orders import RunningOrder
from baton_kv.tcp_messages import (
    MAX_GRANTED,
    ChunkSent,
    Drop,
    Fetch,
    FetchEnded,
    Grant,
    ToPuller,
)
from baton_kv.tcp_wire import MAX_MESSAGES, File, HolderWire


class _Fetch(RunningOrder):
    """An order as its link executes it."""

    def __init__(self, order: PullOrder, block_bytes: int) -> None:
        super().__init__(order)
        self.plan = ChunkPlan(len(order.copies), block_bytes)
        self.num_granted = 0
        self.num_received = 0
        self.is_dropped = False

    def local_ids(self, chunk: Chunk) -> list[int]:
        return [copy.local_block_id for copy in self.order.copies[chunk.blocks]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderAddress:
    """The holder at the other end of a link."""

    name: str
    """For errors."""
    endpoint: str
    token: str
    """What its description says to show with every fetch."""


class HolderLink:
    """Fetches blocks over `wire`.

    `landing` puts verified and unverified blocks alike where they belong; `on_end` takes the outcomes. A
    holder from which nothing comes for `silence_s`, while chunks are awaited, is given up.
    """

    def __init__(
        self,
        wire: HolderWire,
        holder: HolderAddress,
        landing: Landing,
        *,
        silence_s: float,
        on_end: Callable[[PullOutcome], None],
    ) -> None:
        self.is_open = True
        self._wire = wire
        self._holder = holder
        self._landing = landing
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
        """What to wait for."""
        return self._wire.files

    def add(self, now: float, order: PullOrder) -> None:
        """Fetch the blocks of an order that names at least one, after those added before."""
        self._num_fetches += 1
        self._fetches[self._num_fetches] = _Fetch(order, self._block_bytes)
        self._grant(now)

    def drop(self, pull_id: int) -> None:
        """Forget an order: from now on what comes of it is thrown away."""
        for fetch_id, fetch in self._fetches.items():
            if fetch.order.pull_id == pull_id and not fetch.is_dropped:
                fetch.is_dropped = True
                if fetch_id == self._arriving:
                    self._wire.discard()
                if fetch.num_granted:
                    self._wire.send(Drop(fetch_id))
                else:
                    del self._fetches[fetch_id]
                return

    def next_deadline(self) -> float | None:
        """When `advance` is due, whatever the wire says."""
        return self._heard_at + self._silence_s if self._num_awaited else None

    def advance(self, now: float) -> None:
        """Take what has come, up to one chunk; close the link when the holder is lost."""
        self._take_messages(now)
        if not self.is_open:
            return
        if (deadline := self.next_deadline()) is not None and deadline <= now:
            self._give_up(f"has sent nothing for {self._silence_s:g} s")
        else:
            self._grant(now)

    def close(self, error: str) -> None:
        """Close the connection, if it is open; every order in flight ends with `error`."""
        if self.is_open:
            self._close(lambda _: error)

    # --- granting ---

    @property
    def _num_awaited(self) -> int:
        """Chunks that the holder may send now."""
        return sum(fetch.num_granted - fetch.num_received for fetch in self._fetches.values())

    def _grant(self, now: float) -> None:
        """Keep `MAX_GRANTED` chunks on their way: those of the earliest orders."""
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
                self._wire.send(Grant(fetch_id, more))
            else:
                block_ids = tuple(copy.remote_block_id for copy in fetch.order.copies)
                self._wire.send(Fetch(fetch_id, self._holder.token, fetch.order.epoch, block_ids, more))
                fetch.start()
            fetch.num_granted += more
            num_awaited += more

    # --- what comes ---

    def _take_messages(self, now: float) -> None:
        for _ in range(MAX_MESSAGES):
            try:
                message = self._wire.receive(self._place)
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

    def _place(self, message: ToPuller, num_bytes: int) -> Iterable[memoryview]:
        """Where the next chunk of a fetch goes.

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
                copies: tuple[BlockCopy, ...] = fetch.order.copies[chunk.blocks]
                fetch.verify(copies, self._landing.rows(fetch.local_ids(chunk)))
                self._landing.land(fetch.local_ids(chunk))
        if fetch.num_received == len(fetch.plan):
            del self._fetches[message.fetch_id]
            self._end(fetch)

    def _take_end(self, fetch_id: int, reason: str) -> None:
        fetch = self._fetches.pop(fetch_id, None)
        if fetch is not None:
            self._end(fetch, f"{self._holder.name} refused: {reason}")

    # --- ends ---

    def _give_up(self, why: str) -> None:
        self._close(lambda fetch: f"{self._holder.name} {why}; waited for {self._awaited_of(fetch)}")

    def _awaited_of(self, fetch: _Fetch) -> str:
        if not self._wire.is_connected:
            return f"a connection to {self._holder.endpoint}"
        return f"chunk {fetch.num_received + 1} of {len(fetch.plan)} from {self._holder.endpoint}"

    def _close(self, error_of: Callable[[_Fetch], str]) -> None:
        ends = [(fetch, error_of(fetch)) for fetch in self._fetches.values()]
        self.is_open = False
        self._wire.close()
        self._fetches.clear()
        for fetch, error in ends:
            self._end(fetch, error)

    def _end(self, fetch: _Fetch, error: str | None = None) -> None:
        if not fetch.is_dropped:
            self._on_end(fetch.end(error))


def _require_size(message: ToPuller, num_bytes: int, num_allowed: int) -> None:
    if num_bytes != num_allowed:
        raise ValueError(f"{message} has {num_bytes} bytes; allowed: {num_allowed}")
