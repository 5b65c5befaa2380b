"""Merging of block copies into runs: one run is one contiguous copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from baton_core.worker.worker_events import BlockPull
from baton_kv.row_copies import Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRuns:
    """Blocks, cut where a remote or a local id does not follow the one before; one element to each run."""

    remote: Numbers
    """First block there."""
    local: Numbers
    """First block here."""
    num_blocks: Numbers

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        """Remote and local blocks of each run."""
        for remote, local, num_blocks in zip(
            self.remote.tolist(), self.local.tolist(), self.num_blocks.tolist(), strict=True
        ):
            yield slice(remote, remote + num_blocks), slice(local, local + num_blocks)


def merge_runs(blocks: Sequence[BlockPull], max_blocks: int) -> BlockRuns:
    """Cut `blocks`, in their order, into the longest runs of at most `max_blocks`."""
    remote = np.fromiter((block.remote_block_id for block in blocks), np.int64, len(blocks))
    local = np.fromiter((block.local_block_id for block in blocks), np.int64, len(blocks))
    position = np.arange(len(blocks))
    begins = np.ones(len(blocks), bool)
    begins[1:] = (np.diff(remote) != 1) | (np.diff(local) != 1)
    begin = np.maximum.accumulate(np.where(begins, position, 0))
    starts = np.flatnonzero((position - begin) % max_blocks == 0)
    num_blocks = np.diff(starts, append=len(blocks))
    return BlockRuns(remote=remote[starts], local=local[starts], num_blocks=num_blocks)
