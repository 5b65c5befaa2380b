"""Notices that a sequence has begun to repeat itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import Final

from baton_core.errors import InvalidRequestError

MAX_COUNT: Final = 1024
"""Largest size of a pattern in tokens, and most repetitions that may be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionDetectionParams:
    """End a sequence whose last tokens are one pattern, several times.

    Raises:
        InvalidRequestError: a value is out of range.
    """

    max_pattern_size: int = 0
    """Longest pattern to look for, in tokens; 0 looks for none."""
    min_pattern_size: int = 0
    """Shortest pattern; 0 is 1."""
    min_count: int = 0
    """Repetitions of the pattern that end the sequence; 2 or more."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
                name = f"repetition_detection.{field.name}"
                raise InvalidRequestError(name, value, f"an integer from 0 to {MAX_COUNT}")
        if self.min_pattern_size > self.max_pattern_size:
            name, allowed = "repetition_detection.min_pattern_size", f"at most {self.max_pattern_size}"
            raise InvalidRequestError(name, self.min_pattern_size, allowed)
        if self.max_pattern_size and self.min_count < 2:
            raise InvalidRequestError("repetition_detection.min_count", self.min_count, "2 or more")


class RepetitionWatch:
    """Follows one sequence's output; each token costs at most `max_pattern_size` comparisons."""

    def __init__(self, detection: RepetitionDetectionParams) -> None:
        self._detection = detection
        self._recent: deque[int] = deque(maxlen=detection.max_pattern_size)
        """The last tokens, newest first."""
        self._runs: dict[int, int] = {}
        """By distance: how many of the last tokens, without a gap, equal the token so far before them."""

    def add(self, token_id: int) -> None:
        """Take the next token."""
        self._runs = {
            distance: self._runs.get(distance, 0) + 1
            for distance, earlier in enumerate(self._recent, start=1)
            if earlier == token_id
        }
        self._recent.appendleft(token_id)

    @property
    def is_repeating(self) -> bool:
        """Return whether the last tokens repeat a pattern of an allowed size `min_count` times."""
        shortest, num_more = self._detection.min_pattern_size, self._detection.min_count - 1
        return any(size >= shortest and run >= size * num_more for size, run in self._runs.items())
