"""A rank that follows, as its group's leader sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from queue import SimpleQueue

from baton_worker.ranks.rank_channel import AnswerFrame, RankChannel
from baton_worker.ranks.rank_starter import StartedRank


@dataclass(slots=True)
class Follower:
    """A rank, and what it has said."""

    started: StartedRank
    answers: SimpleQueue[AnswerFrame | None] = field(default_factory=SimpleQueue)
    """None once no more will come."""
    adapter_answers: SimpleQueue[AnswerFrame | None] = field(default_factory=SimpleQueue)
    """The same of adapters, which are loaded beside everything else."""
    seen_s: float = field(default_factory=time.monotonic)

    @property
    def channel(self) -> RankChannel:
        return self.started.channel

    def expect_no_answers(self) -> None:
        """End all waits for its answers: its group has ended."""
        self.answers.put(None)
        self.adapter_answers.put(None)
