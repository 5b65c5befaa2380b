"""Merging of block copies into runs: one run is one contiguous copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton_kv.connector import BlockCopy


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Copies whose remote ids and local ids both count up by one."""

    copies: Sequence[BlockCopy]

    @property
    def remote(self) -> slice:
        first = self.copies[0].remote_block_id
        return slice(first, first + len(self.copies))

    @property
    def local(self) -> slice:
        first = self.copies[0].local_block_id
        return slice(first, first + len(self.copies))


def merge_runs(copies: Sequence[BlockCopy], max_blocks: int) -> Iterator[BlockRun]:
    """Cut `copies`, in their order, into the longest runs of at most `max_blocks`."""
    start = 0
    for end in range(1, len(copies) + 1):
        if end == len(copies) or end - start == max_blocks or not _follows(copies[end - 1], copies[end]):
            yield BlockRun(copies[start:end])
            start = end


def _follows(previous: BlockCopy, copy: BlockCopy) -> bool:
    return (
        copy.remote_block_id == previous.remote_block_id + 1
        and copy.local_block_id == previous.local_block_id + 1
    )
