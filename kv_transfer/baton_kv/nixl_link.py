"""The puller's end of the NIXL transport: one holder, the agent that reads its pool, and the orders.

A read cannot be stopped: what was posted writes to its blocks until it is over or its agent is destroyed.
So each holder has an agent of its own, whose end is the fence and disturbs no other pair, and an order is
read in pieces, few at a time, so that after an abort there is little to wait for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from baton_kv.block_runs import merge_runs
from baton_kv.connector import AbortResult, BlockCopy, PullOrder, PullOutcome
from baton_kv.nixl_agent import NixlAgent, NixlRead, Regions
from baton_kv.nixl_library import NixlLibrary
from baton_kv.nixl_messages import Notice, PoolAddress, ReadingBegan, ReadingEnded, encode_notice
from baton_kv.orders import RunningOrder
from baton_kv.row_copies import Numbers

PIECE_BYTES: Final = 8 << 20
"""At most so many bytes to a read, unless a single block is larger."""
MAX_READS: Final = 2
"""Under way from one holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlTimings:
    """What is waited for, and for how long."""

    silence_s: float = 5.0
    """A holder is given up when no read of it ends for so long; below the deadline that the core has for a
    whole copy."""
    fence_s: float = 10.0
    """An agent is destroyed when an aborted order is not over after so long,"""
    fence_share: float = 0.05
    """or when the aborted orders of its holder keep more than this share of the pool from being used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPool:
    """Where blocks are written."""

    library: NixlLibrary
    make_agent: Callable[[], NixlAgent]
    base: int
    """Address of the first block."""
    device: int
    block_bytes: int
    num_blocks: int


class _Order(RunningOrder):
    """An order as its link executes it."""

    def __init__(self, order: PullOrder, block_bytes: int) -> None:
        super().__init__(order)
        size = max(1, PIECE_BYTES // block_bytes)
        self.pieces = deque(order.copies[at : at + size] for at in range(0, len(order.copies), size))
        """Not being read yet."""
        self.num_reads = 0
        self.aborted_at: float | None = None

    @property
    def is_over(self) -> bool:
        return not self.pieces and not self.num_reads


@dataclass(slots=True)
class _Reading:
    order: _Order
    copies: tuple[BlockCopy, ...]
    read: NixlRead


class NixlLink:
    """Reads blocks of the holder at `address`, named `holder` in errors.

    `finish` is called with blocks that have arrived, in the holder's layout; `on_end` takes the outcomes.
    """

    def __init__(
        self,
        holder: str,
        address: PoolAddress,
        local: LocalPool,
        timings: NixlTimings,
        *,
        finish: Callable[[Sequence[int]], None],
        on_end: Callable[[PullOutcome], None],
    ) -> None:
        self._holder = holder
        self._address = address
        self._local = local
        self._timings = timings
        self._finish = finish
        self._on_end = on_end
        self._agent: NixlAgent | None = None
        self._remote_name = ""
        self._orders: OrderedDict[int, _Order] = OrderedDict()
        self._reads: list[_Reading] = []
        self._heard_at = 0.0
        self._num_times = 0
        """How often reading has begun."""

    @property
    def is_busy(self) -> bool:
        return bool(self._orders)

    def open(self) -> NixlAgent:
        """Make the agent, if there is none; does not wait for the holder.

        Raises:
            Exception: one of the library's errors: the address is not one that it understands.
        """
        if self._agent is None:
            agent = self._local.make_agent()
            try:
                self._remote_name = agent.add(self._address.metadata)
            except self._local.library.errors:
                agent.close()
                raise
            self._agent = agent
        return self._agent

    def add(self, order: PullOrder) -> None:
        """Read the blocks of an order that names at least one, after those added before."""
        self._orders[order.pull_id] = _Order(order, self._local.block_bytes)

    def abort(self, now: float, pull_id: int) -> AbortResult:
        """Read no more of an order. What is under way goes on; then `on_end` is called."""
        order = self._orders[pull_id]
        order.pieces.clear()
        if order.is_over:
            del self._orders[pull_id]
            return AbortResult.FENCED
        order.aborted_at = now if order.aborted_at is None else order.aborted_at
        return AbortResult.QUARANTINED

    def advance(self, now: float) -> bool:
        """Take what has arrived and ask for more; whether that should be repeated at once."""
        if self._agent is None and not self._orders:
            return False
        why, has_moved = "", False  # given up below, where no traceback refers to the agent any more
        try:
            has_moved = self._take_ends(now)
            has_moved |= self._post(now)
            for _ in self.open().advance():
                pass
        except self._local.library.errors as error:
            why = f"is gone ({error})"
        if why:
            self._give_up(why)
        elif self._reads and now >= self._heard_at + self._timings.silence_s:
            self._give_up(f"has sent nothing for {self._timings.silence_s:g} s")
        elif self._needs_fence(now):
            self._fence()
        return has_moved

    def close(self, error: str) -> None:
        """Stop; every order ends with `error`."""
        self._close(lambda _: error)

    # --- reads ---

    def _take_ends(self, now: float) -> bool:
        ended = [reading for reading in self._reads if reading.read.is_over()]
        for reading in ended:
            self._heard_at = now
            self._reads.remove(reading)
            reading.read.release()
            order = reading.order
            order.num_reads -= 1
            order.num_bytes += len(reading.copies) * self._local.block_bytes
            if order.aborted_at is None:
                self._finish([copy.local_block_id for copy in reading.copies])
            if order.is_over:
                self._end(order)
        if ended and not self._orders:
            self._tell(ReadingEnded(self._num_times))
        return bool(ended)

    def _post(self, now: float) -> bool:
        """Keep `MAX_READS` under way, those of the earliest orders."""
        has_posted = False
        for order in self._orders.values():
            while order.pieces and len(self._reads) < MAX_READS:
                if not self._reads:
                    self._heard_at = now
                    self._num_times += 1
                    self._tell(ReadingBegan(self._num_times))
                order.start()
                copies = order.pieces[0]
                self._reads.append(_Reading(order, copies, self._read(copies)))
                order.pieces.popleft()
                order.num_reads += 1
                has_posted = True
        return has_posted

    def _read(self, copies: Sequence[BlockCopy]) -> NixlRead:
        runs = merge_runs(copies, len(copies))
        local, remote = self._local, self._address
        return self.open().read(
            make_regions(runs.local, runs.num_blocks, local.base, local.block_bytes, local.device),
            self._remote_name,
            make_regions(runs.remote, runs.num_blocks, remote.base, local.block_bytes, remote.device),
            remote.memory,
        )

    def _tell(self, notice: Notice) -> None:
        self.open().notify(self._remote_name, encode_notice(notice))

    # --- ends ---

    def _needs_fence(self, now: float) -> bool:
        """Whether aborted orders are waited for too long, or keep too much."""
        aborted = [order for order in self._orders.values() if order.aborted_at is not None]
        kept = sum(len(order.order.copies) for order in aborted)
        since = min((order.aborted_at for order in aborted if order.aborted_at is not None), default=now)
        timings = self._timings
        return kept > timings.fence_share * self._local.num_blocks or now >= since + timings.fence_s

    def _fence(self) -> None:
        """End what was aborted; what is left of other orders is read by another agent."""
        self._destroy_agent()
        for order in list(self._orders.values()):
            if order.aborted_at is not None:
                self._end(order)

    def _destroy_agent(self) -> None:
        """From now on nothing writes any more; the pieces that were being read have to be read again."""
        if self._agent is not None:
            self._agent.close([reading.read for reading in self._reads])
            self._agent = None
        for reading in reversed(self._reads):
            reading.order.num_reads -= 1
            reading.order.pieces.appendleft(reading.copies)
        self._reads.clear()

    def _give_up(self, why: str) -> None:
        self._close(lambda order: f"{self._holder} {why}; waited for {self._awaited_of(order)}")

    def _awaited_of(self, order: _Order) -> str:
        num_blocks = len(order.order.copies)
        return f"{num_blocks - order.num_bytes // self._local.block_bytes} of {num_blocks} blocks"

    def _close(self, error_of: Callable[[_Order], str]) -> None:
        errors = {order.order.pull_id: error_of(order) for order in self._orders.values()}
        self._destroy_agent()
        for order in list(self._orders.values()):
            self._end(order, errors[order.order.pull_id])

    def _end(self, order: _Order, error: str | None = None) -> None:
        del self._orders[order.order.pull_id]
        if order.aborted_at is not None:
            error = "it was aborted"
        self._on_end(order.end(error))


def make_regions(first: Numbers, num_blocks: Numbers, base: int, block_bytes: int, device: int) -> Regions:
    """Where runs of blocks lie in the memory of a pool that begins at `base`."""
    regions = np.empty((len(first), 3), np.uint64)
    regions[:, 0] = np.uint64(base) + first.astype(np.uint64) * np.uint64(block_bytes)
    regions[:, 1] = num_blocks * block_bytes
    regions[:, 2] = device
    return regions
