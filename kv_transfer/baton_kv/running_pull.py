"""The counts that every backend needs for a pull: follow it, check what arrives, end it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import xxhash

from baton_core.worker.worker_events import BlockPull, Pull, PullDone
from baton_kv.connector import InvalidBlocksError
from baton_kv.layouts import Blocks


class RunningPull:
    """A pull in flight: the blocks that have arrived, and the wrong ones among them."""

    def __init__(self, pull: Pull) -> None:
        self.request = pull
        self.num_bytes = 0
        self._started: float | None = None
        self._failed: list[int] = []

    def start(self) -> None:
        """The first copy begins; later calls change nothing."""
        if self._started is None:
            self._started = time.monotonic()

    def verify(self, pulled: Sequence[BlockPull], rows: Blocks | Sequence[memoryview]) -> None:
        """Compare blocks as they came, one row each, with the producer's checksums.

        A block without a checksum is a wrong one.
        """
        for block, row in zip(pulled, rows, strict=True):
            if xxhash.xxh3_64_intdigest(row) != block.checksum:
                self._failed.append(block.local_block_id)

    def end(self, error: str = "") -> PullDone:
        """With `error`, every block of the pull failed; without, those whose checksum was wrong."""
        blocks, failed = self.request.blocks, self._failed
        if error:
            failed = [block.local_block_id for block in blocks]
        elif failed:
            error = f"checksum of {len(failed)} of {len(blocks)} blocks does not match"
        return PullDone(
            pull_id=self.request.pull_id,
            failed_block_ids=tuple(failed),
            error=error,
            num_bytes=self.num_bytes,
            seconds=0.0 if self._started is None else time.monotonic() - self._started,
        )


def require_in_range(name: str, block_ids: Sequence[int], num_blocks: int) -> None:
    """Refuse ids outside a pool of `num_blocks`.

    Raises:
        InvalidBlocksError: names the first of them.
    """
    for block_id in block_ids:
        if not 0 <= block_id < num_blocks:
            raise InvalidBlocksError(name, block_id, f"0 to {num_blocks - 1}")
