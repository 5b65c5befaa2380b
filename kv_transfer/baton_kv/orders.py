"""What every backend does with an order: refuse an unsound one, keep count of a running one, end it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import xxhash

from baton_kv.connector import BlockCopy, InvalidBlocksError, PullOrder, PullOutcome
from baton_kv.layouts import Blocks


class RunningOrder:
    """An order in flight: which of its blocks have arrived, and which of those are wrong."""

    def __init__(self, order: PullOrder) -> None:
        self.order = order
        self.num_bytes = 0
        self._started: float | None = None
        self._failed: list[int] = []

    def start(self) -> None:
        """The first copy begins; later calls change nothing."""
        if self._started is None:
            self._started = time.monotonic()

    def verify(self, copies: Sequence[BlockCopy], blocks: Blocks | Sequence[memoryview]) -> None:
        """Compare blocks as they came, one row per copy, with what the holder sealed.

        A block that was never sealed is a wrong one.
        """
        for copy, block in zip(copies, blocks, strict=True):
            if xxhash.xxh3_64_intdigest(block) != copy.checksum:
                self._failed.append(copy.local_block_id)

    def end(self, error: str | None = None) -> PullOutcome:
        """With `error`, every block of the order failed; without, those whose checksum was wrong."""
        copies, failed = self.order.copies, self._failed
        if error is not None:
            failed = [copy.local_block_id for copy in copies]
        elif failed:
            error = f"checksum of {len(failed)} of {len(copies)} blocks does not match"
        return PullOutcome(
            pull_id=self.order.pull_id,
            failed=tuple(failed),
            error=error,
            num_bytes=self.num_bytes,
            seconds=0.0 if self._started is None else time.monotonic() - self._started,
        )


def require_sound(order: PullOrder, *, epoch: int, num_remote_blocks: int, num_local_blocks: int) -> None:
    """Refuse an order that names what is not there, given the peer's epoch and the sizes of both pools.

    Raises:
        InvalidBlocksError: names the field.
    """
    if order.epoch != epoch:
        raise InvalidBlocksError("epoch", order.epoch, f"{epoch}, the one that is connected")
    require_in_range("remote_block_id", [c.remote_block_id for c in order.copies], num_remote_blocks)
    local_ids = [copy.local_block_id for copy in order.copies]
    require_in_range("local_block_id", local_ids, num_local_blocks)
    if len(set(local_ids)) != len(local_ids):
        raise InvalidBlocksError("local_block_id", local_ids, "each block once")


def require_in_range(name: str, block_ids: Sequence[int], num_blocks: int) -> None:
    """Refuse ids outside a pool of `num_blocks`.

    Raises:
        InvalidBlocksError: names the first of them.
    """
    for block_id in block_ids:
        if not 0 <= block_id < num_blocks:
            raise InvalidBlocksError(name, block_id, f"0 to {num_blocks - 1}")
