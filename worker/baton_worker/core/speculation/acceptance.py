"""The share of drafted tokens that turn out right, of one sequence and of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FIRST_GUESS: Final = 0.7
"""Share before anything was drafted."""
MAX_EMPTY: Final = 8
"""Empty drafts in a row after which a sequence rests."""
REST: Final = 4
"""Steps of which a resting sequence drafts in one."""
SEQUENCE_MEMORY: Final = 0.85
WORKER_MEMORY: Final = 0.98


class Acceptance:
    """An average of which the last observations count most."""

    def __init__(self, share: float = FIRST_GUESS, memory: float = WORKER_MEMORY) -> None:
        self.share = share
        self._memory = memory

    def observe(self, *, is_right: bool) -> None:
        self.share = self._memory * self.share + (1 - self._memory) * is_right


class DraftRecord:
    """The last draft of one sequence, and how its drafts have fared.

    A draft is judged by the tokens that follow, whether it was verified or not: so what is known of drafts
    stays true while none is worth its rows.
    """

    def __init__(self, of_worker: Acceptance) -> None:
        self._of_worker = of_worker
        self._own = Acceptance(of_worker.share, SEQUENCE_MEMORY)
        self._draft: tuple[int, ...] = ()
        self._start = 0
        self._num_empty = 0
        """Drafts in a row that were empty."""
        self._num_rested = 0

    @property
    def share(self) -> float:
        """Expected share of right tokens, each behind right ones."""
        return self._own.share

    def judge(self, token_ids: Sequence[int]) -> None:
        """Compare the last draft with the tokens that have come since."""
        for drafted, token_id in zip(self._draft, token_ids[self._start :], strict=False):
            is_right = drafted == token_id
            self._own.observe(is_right=is_right)
            self._of_worker.observe(is_right=is_right)
            if not is_right:
                break

    def propose(self, draft: tuple[int, ...], start: int) -> None:
        """Remember a draft whose first token has position `start`; an empty one, too."""
        self._draft, self._start = draft, start
        self._num_empty = 0 if draft else self._num_empty + 1

    def rests(self) -> bool:
        """Return True if nothing is to be drafted in this step: text that gave no drafts is asked in few."""
        if self._num_empty < MAX_EMPTY:
            return False
        self._num_rested = (self._num_rested + 1) % REST
        return self._num_rested != 0
