"""The consumer's end of the NIXL transport: one producer, the agent that reads its pool, and the orders.

A read cannot be stopped: what was posted writes to its blocks until it is over or its agent is destroyed.
So each producer has an agent of its own, whose end is the fence and disturbs no other pair, and a pull is
read in pieces, few at a time, so that after an abort there is little to wait for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from baton_core.worker.worker_events import BlockPull, Pull, PullDone
from baton_kv.block_runs import merge_runs
from baton_kv.nixl_agent import NixlAgent, NixlRead, Regions
from baton_kv.nixl_library import NixlLibrary
from baton_kv.nixl_messages import Notice, PoolAddress, ReadingBegan, ReadingEnded, encode_notice
from baton_kv.part_reads import PartRead
from baton_kv.row_copies import Numbers
from baton_kv.running_pull import RunningPull

PIECE_BYTES: Final = 8 << 20
"""At most so many bytes to a read, unless a single block is larger."""
MAX_READS: Final = 2
"""Reads under way from one producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlTimings:
    """Times that are waited for."""

    silence_s: float = 5.0
    """A producer is given up when no read of it ends for so long; below the deadline that the core has for a
    whole copy."""
    fence_s: float = 10.0
    """An agent is destroyed when an aborted pull is not over after so long,"""
    fence_share: float = 0.05
    """or when the aborted pulls of its producer keep more than this share of the pool from being used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPool:
    """The pool that blocks are written to."""

    library: NixlLibrary
    make_agent: Callable[[], NixlAgent]
    base: int
    """Address of the first block."""
    device: int
    block_bytes: int
    num_blocks: int


class _NixlPull(RunningPull):
    """A pull that is read in pieces."""

    def __init__(self, pull: Pull, block_bytes: int) -> None:
        super().__init__(pull)
        size = max(1, PIECE_BYTES // block_bytes)
        self.pieces = deque(pull.blocks[at : at + size] for at in range(0, len(pull.blocks), size))
        """Not being read yet."""
        self.num_reads = 0
        self.aborted_at: float | None = None

    @property
    def is_over(self) -> bool:
        return not self.pieces and not self.num_reads


@dataclass(slots=True)
class _Reading:
    pull: _NixlPull
    blocks: tuple[BlockPull, ...]
    read: NixlRead


class NixlLink:
    """Reads blocks of the producer at `address`, named `producer` in errors.

    Of each block `part` is read, or all of it. `finish` is called with blocks that have arrived, in the
    producer's layout; `on_end` takes the outcomes.
    """

    def __init__(
        self,
        producer: str,
        address: PoolAddress,
        local: LocalPool,
        timings: NixlTimings,
        part: PartRead | None = None,
        *,
        finish: Callable[[Sequence[int]], None],
        on_end: Callable[[PullDone], None],
    ) -> None:
        self._producer = producer
        self._address = address
        self._local = local
        self._timings = timings
        self._cuts = None if part is None or part.is_whole(local.block_bytes) else part
        """The part of a block that is read; None is all of it."""
        self._read_bytes = self._cuts.num_bytes if self._cuts else local.block_bytes
        self._finish = finish
        self._on_end = on_end
        self._agent: NixlAgent | None = None
        self._remote_name = ""
        self._pulls: OrderedDict[int, _NixlPull] = OrderedDict()
        self._reads: list[_Reading] = []
        self._heard_at = 0.0
        self._num_times = 0
        """Number of times that reading has begun."""

    def open(self) -> NixlAgent:
        """Make the agent, if there is none; does not wait for the producer.

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

    def add(self, pull: Pull) -> None:
        """Read the blocks of a pull that names at least one, after those added before."""
        self._pulls[pull.pull_id] = _NixlPull(pull, self._local.block_bytes)

    def abort(self, now: float, pull_id: int) -> bool:
        """Read no more of a pull; whether it is fenced. Reads under way go on until `on_end` is called."""
        pull = self._pulls[pull_id]
        pull.pieces.clear()
        if pull.is_over:
            del self._pulls[pull_id]
            return True
        pull.aborted_at = now if pull.aborted_at is None else pull.aborted_at
        return False

    def advance(self, now: float) -> bool:
        """Take what has arrived and ask for more; whether that should be repeated at once."""
        if self._agent is None and not self._pulls:
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
        """Stop; every pull ends with `error`."""
        self._close(lambda _: error)

    # --- reads ---

    def _take_ends(self, now: float) -> bool:
        ended = [reading for reading in self._reads if reading.read.is_over()]
        for reading in ended:
            self._heard_at = now
            self._reads.remove(reading)
            reading.read.release()
            pull = reading.pull
            pull.num_reads -= 1
            pull.num_bytes += len(reading.blocks) * self._read_bytes
            if pull.aborted_at is None:
                self._finish([block.local_block_id for block in reading.blocks])
            if pull.is_over:
                self._end(pull)
        if ended and not self._pulls:
            self._tell(ReadingEnded(self._num_times))
        return bool(ended)

    def _post(self, now: float) -> bool:
        """Keep `MAX_READS` under way, those of the earliest pulls."""
        has_posted = False
        for pull in self._pulls.values():
            while pull.pieces and len(self._reads) < MAX_READS:
                if not self._reads:
                    self._heard_at = now
                    self._num_times += 1
                    self._tell(ReadingBegan(self._num_times))
                pull.start()
                blocks = pull.pieces[0]
                self._reads.append(_Reading(pull, blocks, self._read(blocks)))
                pull.pieces.popleft()
                pull.num_reads += 1
                has_posted = True
        return has_posted

    def _read(self, blocks: Sequence[BlockPull]) -> NixlRead:
        local, remote, cuts = self._local, self._address, self._cuts
        block_bytes = cuts.spec.block_bytes if cuts else local.block_bytes
        runs = merge_runs(blocks, 1 if cuts else len(blocks))
        here = make_regions(runs.local, runs.num_blocks, local.base, local.block_bytes, local.device)
        there = make_regions(runs.remote, runs.num_blocks, remote.base, block_bytes, remote.device)
        if cuts:
            here = cut_regions(here, [(one.target, one.num_bytes) for one in cuts.ranges])
            there = cut_regions(there, [(one.source, one.num_bytes) for one in cuts.ranges])
        return self.open().read(here, self._remote_name, there, remote.memory)

    def _tell(self, notice: Notice) -> None:
        self.open().notify(self._remote_name, encode_notice(notice))

    # --- ends ---

    def _needs_fence(self, now: float) -> bool:
        """True if aborted pulls are waited for too long, or keep too much."""
        aborted = [pull for pull in self._pulls.values() if pull.aborted_at is not None]
        kept = sum(len(pull.request.blocks) for pull in aborted)
        since = min((pull.aborted_at for pull in aborted if pull.aborted_at is not None), default=now)
        timings = self._timings
        return kept > timings.fence_share * self._local.num_blocks or now >= since + timings.fence_s

    def _fence(self) -> None:
        """End the aborted pulls; another agent reads the rest of the others."""
        self._destroy_agent()
        for pull in list(self._pulls.values()):
            if pull.aborted_at is not None:
                self._end(pull)

    def _destroy_agent(self) -> None:
        """From now on nothing writes any more; the pieces that were being read have to be read again."""
        if self._agent is not None:
            self._agent.close([reading.read for reading in self._reads])
            self._agent = None
        for reading in reversed(self._reads):
            reading.pull.num_reads -= 1
            reading.pull.pieces.appendleft(reading.blocks)
        self._reads.clear()

    def _give_up(self, why: str) -> None:
        self._close(lambda pull: f"{self._producer} {why}; waited for {self._awaited_of(pull)}")

    def _awaited_of(self, pull: _NixlPull) -> str:
        num_blocks = len(pull.request.blocks)
        return f"{num_blocks - pull.num_bytes // self._read_bytes} of {num_blocks} blocks"

    def _close(self, error_of: Callable[[_NixlPull], str]) -> None:
        errors = {pull.request.pull_id: error_of(pull) for pull in self._pulls.values()}
        self._destroy_agent()
        for pull in list(self._pulls.values()):
            self._end(pull, errors[pull.request.pull_id])

    def _end(self, pull: _NixlPull, error: str = "") -> None:
        del self._pulls[pull.request.pull_id]
        if pull.aborted_at is not None:
            error = "it was aborted"
        self._on_end(pull.end(error))


def make_regions(first: Numbers, num_blocks: Numbers, base: int, block_bytes: int, device: int) -> Regions:
    """The memory regions of runs of blocks in a pool that begins at `base`."""
    regions = np.empty((len(first), 3), np.uint64)
    regions[:, 0] = np.uint64(base) + first.astype(np.uint64) * np.uint64(block_bytes)
    regions[:, 1] = num_blocks * block_bytes
    regions[:, 2] = device
    return regions


def cut_regions(blocks: Regions, ranges: Sequence[tuple[int, int]]) -> Regions:
    """The regions of ranges, each an offset and a size, of every block, itself a region."""
    regions = np.repeat(blocks, len(ranges), axis=0)
    offsets, sizes = np.array(ranges, np.uint64).T
    regions[:, 0] += np.tile(offsets, len(blocks))
    regions[:, 1] = np.tile(sizes, len(blocks))
    return regions
