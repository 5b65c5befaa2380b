"""Merging of block copies into runs: one run is one contiguous copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from baton_kv.connector import BlockCopy
from baton_kv.row_copies import Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRuns:
    """Copies, cut where a remote id or a local id does not follow the one before; an element to each run."""

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


def merge_runs(copies: Sequence[BlockCopy], max_blocks: int) -> BlockRuns:
    """Cut `copies`, in their order, into the longest runs of at most `max_blocks`."""
    remote = np.fromiter((copy.remote_block_id for copy in copies), np.int64, len(copies))
    local = np.fromiter((copy.local_block_id for copy in copies), np.int64, len(copies))
    position = np.arange(len(copies))
    begins = np.ones(len(copies), bool)
    begins[1:] = (np.diff(remote) != 1) | (np.diff(local) != 1)
    begin = np.maximum.accumulate(np.where(begins, position, 0))
    starts = np.flatnonzero((position - begin) % max_blocks == 0)
    num_blocks = np.diff(starts, append=len(copies))
    return BlockRuns(remote=remote[starts], local=local[starts], num_blocks=num_blocks)
