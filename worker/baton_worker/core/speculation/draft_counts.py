"""Counts of verified drafts, under the names of vLLM's metrics."""

from __future__ import annotations


class DraftCounts:
    """The counts of one worker."""

    def __init__(self, num_positions: int) -> None:
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_accepted_per_position = [0] * num_positions

    def add(self, num_drafted: int, num_accepted: int) -> None:
        """Count one draft."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        for position in range(num_accepted):
            self.num_accepted_per_position[position] += 1
