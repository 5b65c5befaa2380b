"""Prompt lookup: the tokens behind an earlier occurrence of a text's last tokens are its draft."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

_ITEM: Final = "i"
"""Type code of a token in memory; a search over bytes is one call into C."""
_SIZE: Final = array(_ITEM).itemsize


class PromptLookup:
    """The text of one sequence, prompt and output.

    Args:
        low: fewest last tokens that are searched for.
        high: most last tokens; the longest that are found decide, at their earliest place.
    """

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self._text = bytearray()

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """Return at most `num_tokens` that may follow `token_ids`, which continue those of the call before.

        A draft that reaches the end of the text goes on with itself, so a loop is drafted as a loop.
        """
        num_known = len(self._text) // _SIZE
        self._text += array(_ITEM, token_ids[num_known:]).tobytes()
        place = self._find(len(token_ids))
        if place is None:
            return ()
        period = len(token_ids) - place
        return tuple([token_ids[place + index % period] for index in range(num_tokens)])

    def _find(self, num_known: int) -> int | None:
        """Return the place behind the earliest occurrence of the most last tokens that occur before."""
        found = None
        for length in range(self._low, min(self._high, num_known - 1) + 1):
            place = self._place(length)
            if place is None:
                break
            found = place
        return found

    def _place(self, length: int) -> int | None:
        """Return the place behind the earliest occurrence of the last `length` tokens, but for the end."""
        text, pattern = self._text, self._text[-length * _SIZE :]
        end = len(text) - _SIZE
        start = text.find(pattern, 0, end)
        while start >= 0 and start % _SIZE:  # in the middle of a token
            start = text.find(pattern, start + 1, end)
        return start // _SIZE + length if start >= 0 else None
