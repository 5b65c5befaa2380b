"""Follows one JSON value through text that arrives in pieces: where it ends, and whether it is JSON.

Nothing is built and nothing looked at twice: a character costs constant time, whatever came before it.
Control characters within strings, which JSON forbids and models write, are escaped.
Source: RFC 8259.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Final

WHITESPACE: Final = " \t\n\r"


class _State(StrEnum):
    VALUE = "before a value"
    FIRST_ITEM = "before a value or ]"
    KEY = "before a key"
    FIRST_KEY = "before a key or }"
    COLON = "before a colon"
    AFTER = "after a value"
    STRING = "in a string"
    ESCAPE = "after a backslash"
    MINUS = "after a number's minus"
    ZERO = "after a number's leading zero"
    DIGITS = "in a number's integer"
    POINT = "after a number's point"
    FRACTION = "in a number's fraction"
    EXPONENT = "after a number's e"
    SIGN = "after an exponent's sign"
    POWER = "in a number's exponent"


_NUMBER_ENDS: Final = (_State.ZERO, _State.DIGITS, _State.FRACTION, _State.POWER)
_NUMBER_IS_OVER: Final = (None, _State.VALUE, _State.AFTER)
_KEYS: Final = (_State.KEY, _State.FIRST_KEY)
_STRUCTURE: Final = frozenset('"{}[],')
_CLOSERS: Final = {"{": "}", "[": "]"}
_SPECIAL: Final = re.compile(r'["\\\x00-\x1f]')


def _transitions() -> dict[str, dict[str, str]]:
    """For each state, the characters that may come and the state that each leads to.

    The two that depend on where the value is, a comma and the end of a string, lead to a value's.
    Words and `\\u` escapes have one more state for each of their beginnings.
    """
    s, each = _State, dict.fromkeys
    nonzero, digits = "123456789", "0123456789"
    exponent = each("eE", s.EXPONENT)
    value = {"{": s.FIRST_KEY, "[": s.FIRST_ITEM, '"': s.STRING, "-": s.MINUS, "0": s.ZERO}
    value |= each(nonzero, s.DIGITS)
    table: dict[str, dict[str, str]] = {
        s.VALUE: {**value},
        s.FIRST_ITEM: {**value, "]": s.AFTER},
        s.KEY: {'"': s.STRING},
        s.FIRST_KEY: {'"': s.STRING, "}": s.AFTER},
        s.COLON: {":": s.VALUE},
        s.AFTER: {",": s.VALUE, "}": s.AFTER, "]": s.AFTER},
        s.STRING: {'"': s.AFTER, "\\": s.ESCAPE},
        s.ESCAPE: {"u": "u1", **each('"\\/bfnrt', s.STRING)},
        s.MINUS: {"0": s.ZERO, **each(nonzero, s.DIGITS)},
        s.ZERO: {".": s.POINT, **exponent},
        s.DIGITS: {".": s.POINT, **exponent, **each(digits, s.DIGITS)},
        s.POINT: each(digits, s.FRACTION),
        s.FRACTION: {**exponent, **each(digits, s.FRACTION)},
        s.EXPONENT: {**each("+-", s.SIGN), **each(digits, s.POWER)},
        s.SIGN: each(digits, s.POWER),
        s.POWER: each(digits, s.POWER),
    }
    for state in (s.VALUE, s.FIRST_ITEM, s.KEY, s.FIRST_KEY, s.COLON, s.AFTER):
        table[state] |= each(WHITESPACE, state)
    for state in _NUMBER_ENDS:
        table[state] |= table[s.AFTER]
    for before, after in (("u1", "u2"), ("u2", "u3"), ("u3", "u4"), ("u4", s.STRING)):
        table[before] = each(digits + "abcdefABCDEF", after)
    for word in ("true", "false", "null"):
        table[s.VALUE][word[0]] = table[s.FIRST_ITEM][word[0]] = word[0]
        for end in range(1, len(word)):
            table[word[:end]] = {word[end]: word[: end + 1]}
        table[word[:-1]] = {word[-1]: s.AFTER}
    return table


_TRANSITIONS: Final = _transitions()


class JsonScanner:
    """One value. `is_done`: its last character was taken; `is_broken`: what comes next makes it no JSON."""

    __slots__ = ("_closers", "_state", "_string_ends", "is_broken", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        self._state: str = _State.VALUE
        self._closers: list[str] = []
        self._string_ends: str = _State.AFTER

    def read(self, text: str, at: int) -> tuple[int, str]:
        """Take characters of `text` from `at` on.

        Returns:
            The index of the first one that was not taken, and those that were, as JSON.
        """
        taken: list[str] = []
        start = at
        while at < len(text) and not self.is_done:
            if self._state is _State.STRING:
                found = _SPECIAL.search(text, at)
                if found is None:
                    at = len(text)
                    break
                at = found.start()
                if text[at] < " ":
                    taken += (text[start:at], json.dumps(text[at])[1:-1])
                    at = start = at + 1
                    continue
            if not self._take(text[at]):
                break
            at += 1
        return at, "".join((*taken, text[start:at]))

    def _take(self, character: str) -> bool:
        """Return whether the value continues, or ends, with this character."""
        state = self._state
        following = _TRANSITIONS[state].get(character)
        if not self._closers and state in _NUMBER_ENDS and following in _NUMBER_IS_OVER:
            self.is_done = True
            return False
        if following is not None and character in _STRUCTURE:
            following = self._structure(state, character, following)
        if following is None:
            self.is_broken = True
            return False
        self._state = following
        self.is_done = following is _State.AFTER and not self._closers
        return True

    def _structure(self, state: str, character: str, following: str) -> str | None:
        """The state after a character that depends on where the value is or changes that; None breaks it."""
        closers = self._closers
        match character:
            case '"' if state is _State.STRING:
                return self._string_ends
            case '"' if state is not _State.ESCAPE:
                self._string_ends = _State.COLON if state in _KEYS else _State.AFTER
            case "{" | "[":
                closers.append(_CLOSERS[character])
            case "}" | "]":
                return following if closers and closers.pop() == character else None
            case "," if closers:
                return _State.KEY if closers[-1] == "}" else _State.VALUE
        return following
