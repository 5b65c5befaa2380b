"""Finds the first stop string in text that arrives in pieces.

The match that ends first wins, and of those that end together the one that starts first; so the answer
does not depend on how the text is cut, nor on the order of the stop strings. Each character costs constant
time per stop string (Knuth-Morris-Pratt).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


class StopMatcher:
    """The stop strings of one sequence and how far its text has gone into each."""

    def __init__(self, stop: Sequence[str], *, include_stop: bool) -> None:
        self._patterns = [_Pattern(text) for text in stop]
        self._first_characters = frozenset(text[0] for text in stop)
        self._is_idle = True
        """True while no stop string has begun."""
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str, *, can_stop: bool = True) -> tuple[str, str | None]:
        """Take more text; return what can be shown now, and the stop string that the text completed.

        What could be the beginning of a stop string is held back, unless stop strings are shown anyway.
        Without `can_stop` none ends here, but one may begin. After a match the matcher is spent: what
        follows the stop string is dropped.
        """
        if self._is_idle and self._first_characters.isdisjoint(text):
            return text, None
        num_held = len(self._held)
        self._held += text
        for end, character in enumerate(text, start=num_held + 1):
            matched = self._advance(character)
            if matched and can_stop:
                shown = self._held[: end if self._include_stop else end - len(matched)]
                self._held = ""
                return shown, matched
        num_begun = max((pattern.num_matched for pattern in self._patterns), default=0)
        self._is_idle = not num_begun
        num_shown = len(self._held) - (0 if self._include_stop else num_begun)
        shown, self._held = self._held[:num_shown], self._held[num_shown:]
        return shown, None

    def flush(self) -> str:
        """Return what is held back: no more text comes."""
        shown, self._held = self._held, ""
        return shown

    def _advance(self, character: str) -> str:
        matched = [pattern.text for pattern in self._patterns if pattern.advance(character)]
        return max(matched, key=len, default="")


class _Pattern:
    __slots__ = ("_fallback", "num_matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        self._fallback = _fallback_table(text)

    def advance(self, character: str) -> bool:
        while self.num_matched and self.text[self.num_matched] != character:
            self.num_matched = self._fallback[self.num_matched - 1]
        self.num_matched += self.text[self.num_matched] == character
        if self.num_matched < len(self.text):
            return False
        self.num_matched = self._fallback[-1]
        return True


@lru_cache(maxsize=256)
def _fallback_table(text: str) -> tuple[int, ...]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(text)
    length = 0
    for position in range(1, len(text)):
        while length and text[position] != text[length]:
            length = table[length - 1]
        length += text[position] == text[length]
        table[position] = length
    return tuple(table)
