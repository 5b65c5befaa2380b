"""Reads regular expressions: the one meaning that they have, whichever library compiles them.

The meaning is that of Python's `re` with `re.ASCII`: `\\d`, `\\w` and `\\s` are ASCII, `.` is all but a
line's end, `(?i)` is about ASCII letters. What Python's `re`, ECMAScript and Rust's `regex` read differently,
and what no automaton can follow (lookaround, backreferences), is refused by name. docs/api.md describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from baton_core.requests.expression_anchors import AnchorError, hold_to_whole, hold_within
from baton_core.requests.expression_tree import (
    MAX_CODE,
    Anchor,
    Characters,
    Choice,
    Node,
    Ranges,
    complement,
    normal_ranges,
    num_atoms,
    repeat,
    sequence,
)

MAX_CHARACTERS: Final = 16_384
MAX_NESTING: Final = 64
MAX_ATOMS: Final = 100_000
"""Characters of an expression with its repetitions written out: 50 for `(a{3}b{2}){10}`."""
_DIGITS: Final = ((0x30, 0x39),)
_WORD: Final = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final = ((0x09, 0x0D), (0x20, 0x20))
_CLASSES: Final[dict[str, Ranges]] = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CLASSES_AND_OTHERS: Final = _CLASSES | {name.upper(): complement(of) for name, of in _CLASSES.items()}
_CONTROLS: Final = {"a": 7, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_NO_LINE_END: Final = complement(((0x0A, 0x0A),))
_ANY: Final = complement(())
_CODE: Final = re.compile(
    r"x([0-9A-Fa-f]{2})|[xu]\{([0-9A-Fa-f]{1,8})\}|U([0-9A-Fa-f]{8})"
    r"|u([Dd][89ABab][0-9A-Fa-f]{2})\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})"
)
_PROPERTY: Final = re.compile(r"[pP](?:\{(\^?)([A-Za-z][A-Za-z0-9_]*(?:=[A-Za-z0-9_]+)?)\}|([A-Z]))")
_COUNT: Final = re.compile(r"\{([0-9]{1,9})(,([0-9]{0,9}))?\}")
_NO_COUNT: Final = re.compile(r"\{[0-9]*(?:,[0-9]*)?\}")
_GROUP: Final = re.compile(
    r"\?(?::|P?<(?P<name>[A-Za-z_]\w*)>|(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?(?P<end>[:)]))"
)
_OF_NO_AUTOMATON: Final = {
    "?=": "look-around",
    "?!": "look-around",
    "?<=": "look-around",
    "?<!": "look-around",
    "?>": "an atomic group",
    "?P=": "a backreference",
    "?(": "a conditional group",
    "?#": "a comment",
}
_SET_OPERATORS: Final = ("&&", "--", "~~", "||", "[:", "[.", "[=")


class RegexError(ValueError):
    """An expression's error and its position."""


def parse_regex(pattern: str) -> Node:
    """Return the tree of an expression that has to match a whole text; anchors at its ends change nothing.

    Raises:
        RegexError: it is no expression, or has what is not supported.
    """
    return _parse(pattern, hold_to_whole)


def parse_search(pattern: str) -> Node:
    """Return the tree of all texts in which an expression is found, as JSON Schema's `pattern` means it.

    Raises:
        RegexError: it is no expression, or has what is not supported.
    """
    return _parse(pattern, hold_within)


def _parse(pattern: str, resolve_anchors: Callable[[Node], Node]) -> Node:
    if len(pattern) > MAX_CHARACTERS:
        raise RegexError(f"an expression has at most {MAX_CHARACTERS} characters, this one {len(pattern)}")
    tree = _Parser(pattern).whole()
    if num_atoms(tree) > MAX_ATOMS:
        raise RegexError(f"at most {MAX_ATOMS} characters once its repetitions are written out")
    try:
        return resolve_anchors(tree)
    except AnchorError as error:
        raise RegexError(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Flags:
    ignores_case: bool = False
    dot_is_any: bool = False


class _Parser:
    """Reads one expression from its begin to its end."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._flags = _Flags()
        self._depth = 0
        self._names: set[str] = set()

    def whole(self) -> Node:
        """Return the tree with its anchors."""
        match = _GROUP.match(self._pattern, 1) if self._pattern.startswith("(?") else None
        if match is not None and match["end"] == ")":  # the `(?i)` that begins an expression
            self._flags, self._at = self._changed_flags(match), match.end()
        tree = self._choice()
        if self._at < len(self._pattern):
            raise self._error("')' closes no group")
        return tree

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._takes("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return sequence(parts)

    def _atom(self) -> Node:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._set()
            case ".":
                return Characters(_ANY if self._flags.dot_is_any else _NO_LINE_END)
            case "^" | "$":
                return Anchor(is_end=character == "$")
            case "*" | "+" | "?":
                raise self._error(f"{character!r} repeats nothing")
            case "{" if _NO_COUNT.match(self._pattern, self._at - 1):
                raise self._error(r"a count repeats nothing; the character is written \{")
            case "\\":
                if self._pattern[self._at : self._at + 1] in ("A", "z", "Z"):
                    return Anchor(is_end=self._next() != "A")
                return self._in_both_cases(self._escape(in_set=False))
        return self._in_both_cases(_single(ord(character)))

    def _repeated(self, part: Node) -> Node:
        count = self._count()
        if count is None:
            return part
        if isinstance(part, Anchor):
            raise self._error("an anchor cannot be repeated")
        if self._takes("+"):
            raise self._error("possessive repetition is not supported")
        self._takes("?")  # lazy or not, the texts are the same
        if self._count() is not None:
            raise self._error("a repetition is repeated; put a group around it")
        return repeat(part, *count)

    def _count(self) -> tuple[int, int | None] | None:
        """Read the repetition of the last part; None without one."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return bounds
        match = _COUNT.match(self._pattern, self._at)
        if match is None:
            if _NO_COUNT.match(self._pattern, self._at):
                raise self._error(r"a count is {n}, {n,} or {n,m}; the character is written \{")
            return None
        low = int(match[1])
        high = low if match[2] is None else int(match[3]) if match[3] else None
        if high is not None and high < low:
            raise self._error(f"the count {match[0]} runs backwards")
        self._at = match.end()
        return low, high

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(f"at most {MAX_NESTING} groups in each other")
        outer = self._flags
        if self._pattern.startswith("?", self._at):
            self._read_group_kind()
        tree = self._choice()
        if not self._takes(")"):
            raise self._error("unclosed group")
        self._flags = outer
        self._depth -= 1
        return tree

    def _read_group_kind(self) -> None:
        for start, name in _OF_NO_AUTOMATON.items():
            if self._pattern.startswith(start, self._at):
                raise self._error(f"{name} '({start}' is not supported")
        match = _GROUP.match(self._pattern, self._at)
        if match is None:
            raise self._error("a group of an unknown kind")
        if match["end"] == ")":
            raise self._error("flags for the rest stand at the begin of the expression alone")
        if match["end"] is not None:
            self._flags = self._changed_flags(match)
        if (name := match["name"]) is not None:
            if name in self._names:
                raise self._error(f"two groups are called {name!r}")
            self._names.add(name)
        self._at = match.end()

    def _changed_flags(self, match: re.Match[str]) -> _Flags:
        on, off = match["on"] or "", match["off"] or ""
        if unknown := set(on + off) - {"i", "s"}:
            raise self._error(f"the flag {min(unknown)!r} is not supported; i and s are")
        flags = self._flags
        return _Flags(
            ignores_case=("i" in on or flags.ignores_case) and "i" not in off,
            dot_is_any=("s" in on or flags.dot_is_any) and "s" not in off,
        )

    def _escape(self, *, in_set: bool) -> Characters:
        """Read what follows a backslash."""
        if match := _CODE.match(self._pattern, self._at):
            self._at = match.end()
            return _single(self._code(match))
        if match := _PROPERTY.match(self._pattern, self._at):
            self._at = match.end()
            if self._flags.ignores_case:
                raise self._error(f"\\{match[0]} where (?i) holds is not supported")
            is_without = (match[0][0] == "P") != bool(match[1])
            return Characters((), (f"{'P' if is_without else 'p'}{{{match[2] or match[3]}}}",))
        character = self._next()
        if character in _CLASSES_AND_OTHERS:
            return Characters(_CLASSES_AND_OTHERS[character])
        if character in _CONTROLS:
            return _single(_CONTROLS[character])
        if character == "b" and in_set:
            return _single(8)
        if character == "0" and not self._pattern[self._at : self._at + 1].isdigit():
            return _single(0)
        if character in "123456789":
            raise self._error(f"backreferences such as \\{character} are not supported")
        if character in "bB":
            raise self._error(f"the word boundary \\{character} is not supported")
        if character.isalnum() and character.isascii():
            raise self._error(f"the escape \\{character} is not supported")
        return _single(ord(character))

    def _code(self, match: re.Match[str]) -> int:
        if match[4]:
            return 0x10000 + ((int(match[4], 16) - 0xD800) << 10) + int(match[5], 16) - 0xDC00
        code = int(match[1] or match[2] or match[3] or match[6], 16)
        if code > MAX_CODE or not normal_ranges(((code, code),)):
            raise self._error(f"\\{match[0]} is no character")
        return code

    def _set(self) -> Characters:
        """Read a class in brackets; a `]` that comes first is one of its characters."""
        is_negated, is_first = self._takes("^"), True
        ranges: list[tuple[int, int]] = []
        properties: list[str] = []
        while is_first or not self._pattern.startswith("]", self._at):
            is_first = False
            item = self._set_item()
            if self._is_range():
                self._at += 1
                ranges.append(self._range(item, self._set_item()))
            else:
                ranges += item.ranges
                properties += item.properties
        self._at += 1
        found = self._in_both_cases(Characters(normal_ranges(ranges))).ranges
        if properties:
            return Characters(found, tuple(properties), is_negated)
        found = complement(found) if is_negated else found
        if not found:
            raise self._error("a class of no character")
        return Characters(found)

    def _set_item(self) -> Characters:
        if self._at >= len(self._pattern):
            raise self._error("unclosed character class")
        for operator in _SET_OPERATORS:
            if self._pattern.startswith(operator, self._at):
                raise self._error(f"{operator!r} in a class means different things; escape the characters")
        character = self._next()
        return self._escape(in_set=True) if character == "\\" else _single(ord(character))

    def _is_range(self) -> bool:
        """Return whether a `-` comes that is not the last character of its class."""
        return self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at)

    def _range(self, low: Characters, high: Characters) -> tuple[int, int]:
        ends = [one.ranges[0][0] for one in (low, high) if one.is_single]
        if len(ends) < 2:
            raise self._error(r"a range from or to a class; the character - is written \-")
        if ends[0] > ends[1]:
            raise self._error(f"a range from U+{ends[0]:04X} to U+{ends[1]:04X} runs backwards")
        return ends[0], ends[1]

    def _in_both_cases(self, one: Characters) -> Characters:
        """Return a set with the other case of its ASCII letters too, where that is wanted."""
        if not self._flags.ignores_case:
            return one
        others: list[tuple[int, int]] = []
        for first, shift in ((0x41, 32), (0x61, -32)):
            for low, high in one.ranges:
                low, high = max(low, first), min(high, first + 25)
                others += [(low + shift, high + shift)] if low <= high else []
        return replace(one, ranges=normal_ranges((*one.ranges, *others)))

    def _takes(self, text: str) -> bool:
        is_next = self._pattern.startswith(text, self._at)
        self._at += len(text) * is_next
        return is_next

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise self._error("it ends in a backslash")
        self._at += 1
        return self._pattern[self._at - 1]

    def _error(self, text: str) -> RegexError:
        return RegexError(f"{text}, at character {self._at}")


def _single(code: int) -> Characters:
    return Characters(((code, code),))
