"""The puller's end of the TCP transport: one connection to one holder, and the orders that use it.

A link lives as long as its connection and is never mended: what is lost with it ends in an error, and the
next order makes a new one. So a chunk can only belong to an order of the connection it came over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

import msgspec
import numpy as np
import zmq
from zmq.utils.monitor import parse_monitor_message

from baton_kv.chunks import Chunk, ChunkPlan
from baton_kv.connector import BlockCopy, PullOrder, PullOutcome
from baton_kv.layouts import Blocks
from baton_kv.orders import RunningOrder
from baton_kv.tcp_messages import (
    MAX_GRANTED,
    ChunkSent,
    Drop,
    Fetch,
    FetchEnded,
    Grant,
    ToHolder,
    decode_to_puller,
    encode,
)
from baton_kv.tcp_socket import CONNECTION_LOST, close

_MAX_MESSAGES: Final = 64
"""Taken in one step; a step ends earlier with a chunk."""
WriteBlocks = Callable[[list[int], Blocks], None]
"""Writes rows in the holder's layout over local blocks."""


class _Fetch(RunningOrder):
    """An order as its link executes it."""

    def __init__(self, order: PullOrder, block_bytes: int) -> None:
        super().__init__(order)
        self.plan = ChunkPlan(len(order.copies), block_bytes)
        self.num_granted = 0
        self.num_received = 0
        self.is_dropped = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderAddress:
    """The holder at the other end of a link."""

    name: str
    """For errors."""
    endpoint: str
    token: str
    """What its description says to show with every fetch."""


class HolderLink:
    """Fetches blocks over `sockets`, which `tcp_socket.connect` has opened.

    `write` puts verified and unverified blocks alike where they belong; `on_end` takes the outcomes. A
    holder from which nothing comes for `silence_s`, while chunks are awaited, is given up.
    """

    def __init__(
        self,
        sockets: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
        holder: HolderAddress,
        *,
        block_bytes: int,
        silence_s: float,
        write: WriteBlocks,
        on_end: Callable[[PullOutcome], None],
    ) -> None:
        self.socket, self.monitor = sockets
        self.is_open = True
        self._holder = holder
        self._block_bytes = block_bytes
        self._silence_s = silence_s
        self._write = write
        self._on_end = on_end
        self._is_connected = False
        self._fetches: OrderedDict[int, _Fetch] = OrderedDict()
        self._num_fetches = 0
        self._heard_at = 0.0
        self._partial: Blocks | None = None

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
                if fetch.num_granted:
                    self._send(Drop(fetch_id))
                else:
                    del self._fetches[fetch_id]
                return

    def next_deadline(self) -> float | None:
        """When `advance` is due, whatever the sockets say."""
        return self._heard_at + self._silence_s if self._num_awaited else None

    def advance(self, now: float) -> None:
        """Take what has come, up to one chunk; close the link when the holder is lost."""
        self._take_messages(now)
        if not self.is_open:
            return
        if self._is_lost():
            self._give_up("is gone")
        elif (deadline := self.next_deadline()) is not None and deadline <= now:
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
                self._send(Grant(fetch_id, more))
            else:
                block_ids = tuple(copy.remote_block_id for copy in fetch.order.copies)
                self._send(Fetch(fetch_id, self._holder.token, fetch.order.epoch, block_ids, more))
                fetch.start()
            fetch.num_granted += more
            num_awaited += more

    def _send(self, message: ToHolder) -> None:
        """Send without waiting. What finds no room is missed by the deadline."""
        try:
            self.socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return

    # --- what comes ---

    def _take_messages(self, now: float) -> None:
        for _ in range(_MAX_MESSAGES):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._heard_at = now
            try:
                message = decode_to_puller(frames[0].buffer)
                match message:
                    case ChunkSent():
                        (payload,) = frames[1:]
                        self._take_chunk(message, np.frombuffer(payload.buffer, np.uint8))
                        return
                    case FetchEnded(fetch_id=fetch_id, reason=reason):
                        self._take_end(fetch_id, reason)
                    case _:
                        assert_never(message)
            except (ValueError, msgspec.MsgspecError) as error:
                self._give_up(f"does not keep to the protocol ({error})")
                return

    def _take_chunk(self, message: ChunkSent, payload: Blocks) -> None:
        """Take the next chunk of a fetch.

        Raises:
            ValueError: it is another, or has another size.
        """
        fetch = self._fetches.get(message.fetch_id)
        if fetch is None or message.number != fetch.num_received or message.number == fetch.num_granted:
            raise ValueError(f"{message} was not asked for")
        chunk = fetch.plan[message.number]
        if len(payload) != chunk.num_bytes:
            raise ValueError(f"{message} has {len(payload)} bytes; allowed: {chunk.num_bytes}")
        fetch.num_received += 1
        if not fetch.is_dropped:
            self._store(fetch, chunk, payload.reshape(chunk.shape))
        if fetch.num_received == len(fetch.plan):
            del self._fetches[message.fetch_id]
            self._end(fetch)

    def _take_end(self, fetch_id: int, reason: str) -> None:
        fetch = self._fetches.pop(fetch_id, None)
        if fetch is not None:
            self._end(fetch, f"{self._holder.name} refused: {reason}")

    def _store(self, fetch: _Fetch, chunk: Chunk, rows: Blocks) -> None:
        """Verify and write the blocks that are complete with this chunk."""
        fetch.num_bytes += rows.size
        if fetch.plan.chunks_per_block > 1:
            if self._partial is None:
                self._partial = np.empty((1, self._block_bytes), np.uint8)
            self._partial[:, chunk.columns] = rows
            if chunk.columns.stop < self._block_bytes:
                return
            rows = self._partial
        copies: tuple[BlockCopy, ...] = fetch.order.copies[chunk.blocks]
        fetch.verify(copies, rows)
        self._write([copy.local_block_id for copy in copies], rows)

    # --- ends ---

    def _is_lost(self) -> bool:
        """Whether the connection has ended, or could not be made."""
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart())["event"]
            if event & CONNECTION_LOST:
                return True
            self._is_connected = True
        return False

    def _give_up(self, why: str) -> None:
        self._close(lambda fetch: f"{self._holder.name} {why}; waited for {self._awaited_of(fetch)}")

    def _awaited_of(self, fetch: _Fetch) -> str:
        if not self._is_connected:
            return f"a connection to {self._holder.endpoint}"
        return f"chunk {fetch.num_received + 1} of {len(fetch.plan)} from {self._holder.endpoint}"

    def _close(self, error_of: Callable[[_Fetch], str]) -> None:
        self.is_open = False
        close(self.socket, self.monitor)
        fetches, self._fetches = self._fetches, OrderedDict()
        for fetch in fetches.values():
            self._end(fetch, error_of(fetch))

    def _end(self, fetch: _Fetch, error: str | None = None) -> None:
        if not fetch.is_dropped:
            self._on_end(fetch.end(error))
