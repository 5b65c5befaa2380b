"""Reads tool calls that the model writes as JSON: `{"name": "f", "arguments": {...}}`, and lists of them.

The arguments go to the writer as they come in. What precedes them is kept there until the call is certain,
that is, until its name and the beginning of its arguments are known. So arguments that precede the
name are held back whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from baton_router.output_parsing.delta_writer import DeltaWriter
from baton_router.output_parsing.json_scanner import WHITESPACE, JsonScanner

_ARGUMENTS: Final = ("arguments", "parameters")
_KEYS: Final = ("name", "type", "id", *_ARGUMENTS)
"""Keys that may precede the arguments of a call. An object that begins otherwise is content."""


class JsonCall:
    """One call. `is_done`: its `}` was taken; `is_broken`: what comes next cannot belong to a call.

    `has_begun`: the arguments did, so that it is certain to be a call.

    Keys after the arguments may be any. Where a call breaks after its arguments began, they end there.

    Args:
        is_marked: it stands between marks, so its arguments may be missing, null, or JSON (or nothing)
            within a string.
    """

    def __init__(self, out: DeltaWriter, *, is_marked: bool = False) -> None:
        self._is_marked = is_marked
        self.is_done = False
        self.is_broken = False
        self._out = out
        self._state: Callable[[str, int], int] = self._before_object
        self._scanner = JsonScanner()
        self._token: list[str] = []
        self._key = ""
        self._name = ""
        self._early_arguments = ""
        self.has_begun = False

    def feed(self, text: str, at: int) -> int:
        """Take characters of `text` from `at` on; return the index of the first one that was not taken."""
        while at < len(text) and not (self.is_done or self.is_broken):
            at = self._state(text, at)
        return at

    def _before_object(self, text: str, at: int) -> int:
        return self._expect(text, at, {"{": self._before_key})

    def _before_key(self, text: str, at: int) -> int:
        if text[at] == '"':
            return self._scan(self._in_key, at)
        return self._expect(text, at, {})

    def _in_key(self, text: str, at: int) -> int:
        end = self._feed_token(text, at)
        if self._scanner.is_done:
            self._key = json.loads("".join(self._token))
            self._state = self._before_colon
            self.is_broken = not self.has_begun and self._key not in _KEYS
        return end

    def _before_colon(self, text: str, at: int) -> int:
        return self._expect(text, at, {":": self._before_value})

    def _before_value(self, text: str, at: int) -> int:
        if text[at] in WHITESPACE:
            return self._expect(text, at, {})
        if self.has_begun:
            return self._scan(self._in_value, at)
        return self._before_part(text, at)

    def _before_part(self, text: str, at: int) -> int:
        """The first character of a value that may belong to the call."""
        if self._key == "name" and text[at] != '"':
            self.is_broken = True
        elif self._key in _ARGUMENTS:
            self.is_broken = text[at] not in ('{"n' if self._is_marked else "{")
            if self._name and text[at] == "{":
                self._begin(self._name)
                return self._scan(self._in_arguments, at)
        return self._scan(self._in_value, at)

    def _in_arguments(self, text: str, at: int) -> int:
        end, taken = self._scanner.read(text, at)
        self._out.arguments(taken)
        if end < len(text) or self._scanner.is_done:
            self._follow_scanner()
        return end

    def _in_value(self, text: str, at: int) -> int:
        end = self._feed_token(text, at)
        self._follow_scanner()
        if self._scanner.is_done and not self.has_begun:
            self._end_part("".join(self._token))
        return end

    def _end_part(self, value: str) -> None:
        if self._key == "name":
            self._name = json.loads(value)
        elif self._key in _ARGUMENTS and value not in ("null", '""'):
            self._early_arguments = _object(json.loads(value).strip() if value[0] == '"' else value)
            self.is_broken = not self._early_arguments
        if self._name and self._early_arguments and not self.is_broken:
            self._begin(self._name)
            self._out.arguments(self._early_arguments)

    def _after_value(self, text: str, at: int) -> int:
        if text[at] == "}" and self._is_marked and self._name and not self.has_begun:
            self._begin(self._name)
            self._out.arguments("{}")
        if text[at] == "}" and self.has_begun:
            self.is_done = True
            self._out.discard_kept()
            return at + 1
        return self._expect(text, at, {",": self._before_key})

    def _begin(self, name: str) -> None:
        self.has_begun = True
        self._out.start_call(name)

    def _scan(self, state: Callable[[str, int], int], at: int) -> int:
        """A string or value begins here."""
        self._scanner = JsonScanner()
        self._token = []
        self._state = state
        return at

    def _feed_token(self, text: str, at: int) -> int:
        end, taken = self._scanner.read(text, at)
        self._out.keep(text[at:end])
        self._token.append(taken)
        self.is_broken = self._scanner.is_broken
        return end

    def _follow_scanner(self) -> None:
        self.is_broken = self._scanner.is_broken
        if self._scanner.is_done:
            self._state = self._after_value

    def _expect(self, text: str, at: int, states: Mapping[str, Callable[[str, int], int]]) -> int:
        """Take white space or one of the characters given, each of which leads to a state."""
        character = text[at]
        if character in states:
            self._state = states[character]
        elif character not in WHITESPACE:
            self.is_broken = True
            return at
        self._out.keep(character)
        return at + 1


def _object(text: str) -> str:
    """Return the text of one JSON object; empty where it is none."""
    scanner = JsonScanner()
    end, taken = scanner.read(text, 0)
    return taken if text.startswith("{") and end == len(text) and scanner.is_done else ""


class _Place(StrEnum):
    BEFORE = "["
    IN_CALL = "a call"
    AFTER_CALL = ", or ]"


class JsonCallList:
    """`[call, call, ...]`, at least one; otherwise as `JsonCall`."""

    def __init__(self, out: DeltaWriter) -> None:
        self.is_done = False
        self.is_broken = False
        self._out = out
        self._place = _Place.BEFORE
        self._call = JsonCall(out)

    def feed(self, text: str, at: int) -> int:
        """Take characters of `text` from `at` on; return the index of the first one that was not taken."""
        while at < len(text) and not (self.is_done or self.is_broken):
            at = self._feed_call(text, at) if self._place is _Place.IN_CALL else self._between(text, at)
        return at

    def _feed_call(self, text: str, at: int) -> int:
        end = self._call.feed(text, at)
        self.is_broken = self._call.is_broken
        if self._call.is_done:
            self._place = _Place.AFTER_CALL
        return end

    def _between(self, text: str, at: int) -> int:
        match self._place, text[at]:
            case (_Place.BEFORE, "[") | (_Place.AFTER_CALL, ","):
                self._place = _Place.IN_CALL
                self._call = JsonCall(self._out)
            case _Place.AFTER_CALL, "]":
                self.is_done = True
            case _, character if character not in WHITESPACE:
                self.is_broken = True
                return at
        self._out.keep(text[at])
        return at + 1
