"""Prompt tokens ahead of a new request at one worker, from reservations and the worker's reports."""

from __future__ import annotations


class TokenQueue:
    """Combines reservations and reports without counting a token twice.

    Two figures are known: the reserved tokens, whose prompts are not wholly computed, and the tokens that
    the worker had left to compute at its last report. Both include tokens computed since, so the smaller one
    is used. Reported tokens beyond the reserved ones belong to the worker itself, or to routers that share
    nothing; they count until the next report.
    """

    def __init__(self) -> None:
        self._reserved = 0
        self._reserved_since = 0
        self._reported = 0
        self._beyond = 0

    @property
    def num_tokens(self) -> int:
        return self._beyond + min(self._reserved, self._reported + self._reserved_since)

    def change(self, num_tokens: int) -> None:
        """Reserve tokens, or release them where `num_tokens` is negative."""
        self._reserved += num_tokens
        self._reserved_since += max(0, num_tokens)

    def report(self, num_queued_tokens: int) -> None:
        """Take the number of tokens that the worker reports as left to compute."""
        self._reported = min(num_queued_tokens, self._reserved)
        self._beyond = num_queued_tokens - self._reported
        self._reserved_since = 0
