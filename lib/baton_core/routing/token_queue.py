"""Prompt tokens ahead of a new request at one worker, from what routers gave it and what it reports."""

from __future__ import annotations


class TokenQueue:
    """Counts nothing twice: a report contains what was given before it.

    Two things are known: what is open, that is given and not yet computed as a whole, and what the worker
    had left to compute at its last report. Each is too much by what was computed since, so the lesser one
    holds. What a report has beyond all that was open then is the worker's own, or of routers that share
    nothing; it counts until the next report.
    """

    def __init__(self) -> None:
        self._open = 0
        self._given_since = 0
        self._reported = 0
        self._beyond = 0

    @property
    def num_tokens(self) -> int:
        return self._beyond + min(self._open, self._reported + self._given_since)

    def change(self, num_tokens: int) -> None:
        """Tokens were given, or, where `num_tokens` is negative, taken back."""
        self._open += num_tokens
        self._given_since += max(0, num_tokens)

    def report(self, num_queued_tokens: int) -> None:
        """What the worker says it has left to compute."""
        self._reported = min(num_queued_tokens, self._open)
        self._beyond = num_queued_tokens - self._reported
        self._given_since = 0
