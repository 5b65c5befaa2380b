"""A pull that several others make up: it ends with the last of them."""

from __future__ import annotations

from collections.abc import Iterable

from baton_core.worker.worker_events import Pull, PullDone


class JoinedPull:
    """A pull whose `parts`, any numbers, are under way."""

    def __init__(self, request: Pull, parts: Iterable[int]) -> None:
        self.request = request
        self.left = set(parts)
        """Parts that have not ended."""
        self.ended: dict[int, PullDone] = {}
        self.is_aborted = False

    def end_part(self, part: int, done: PullDone | None) -> bool:
        """Take the end of a part, None for one that was aborted; True if it was the last one."""
        is_known = part in self.left
        self.left.discard(part)
        if done is not None and is_known:
            self.ended[part] = done
        return is_known and not self.left

    @property
    def error(self) -> str:
        """The reasons why parts have failed."""
        if self.is_aborted:
            return "it was aborted"
        return "; ".join(dict.fromkeys(done.error for done in self.ended.values() if done.error))

    def end(self, error: str = "", failed: Iterable[int] = (), sums: tuple[int, ...] = ()) -> PullDone:
        """Return its end; where a part has failed, all of its blocks have."""
        if self.error:
            error, failed = self.error, [block.local_block_id for block in self.request.blocks]
        return PullDone(
            pull_id=self.request.pull_id,
            failed_block_ids=tuple(failed),
            error=error,
            num_bytes=sum(done.num_bytes for done in self.ended.values()),
            seconds=max((done.seconds for done in self.ended.values()), default=0.0),
            sums=sums,
        )
