"""Prompt lookup: the tokens behind an earlier occurrence of a text's last tokens are its draft."""

from __future__ import annotations

from collections.abc import Sequence


class PromptLookup:
    """The text of one sequence, prompt and output, as a string: each search is one call into C.

    Args:
        low: fewest last tokens that are searched for.
        high: most last tokens; the longest that are found decide, at their earliest place.
    """

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self._text = ""
        """A character for each token; there are more characters than any vocabulary has tokens."""

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """Return at most `num_tokens` that may follow `token_ids`, which continue those of the call before.

        A draft that reaches the end of the text goes on with itself, so a loop is drafted as a loop.
        """
        self._text += "".join(map(chr, token_ids[len(self._text) :]))
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
        start = self._text.find(self._text[-length:], 0, len(self._text) - 1)
        return start + length if start >= 0 else None
