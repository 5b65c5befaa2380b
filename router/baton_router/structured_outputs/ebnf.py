"""Checks grammars in the notation of GBNF, as xgrammar reads it, without compiling them.

Source: github.com/mlc-ai/xgrammar, cpp/grammar_parser.cc, and llama.cpp's grammars/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

MAX_NESTING: Final = 64
MAX_RULES: Final = 1024
ROOT: Final = "root"
_CODE: Final = r"x[0-9A-Fa-f]{1,8}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}"
_ESCAPE: Final = rf"""\\(?:["'/0?\\abefnrtv]|{_CODE})"""
_RANGE_ESCAPE: Final = rf"""\\(?:["$'()*+\-./0?[\\\]^abefnrtv{{|}}]|{_CODE})"""
_CONTROLS: Final = {"0": 0, "a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "e": 27}
_MAX_CODE: Final = 0x10FFFF
_TOKEN: Final = re.compile(
    rf"""
    (?P<blank>[ \t\r]+|\#[^\r\n]*)
    |(?P<line>\n)
    |(?P<rule>[A-Za-z_.\-][\w.\-]*[ \t]*::=)
    |(?P<name>[A-Za-z_.\-][\w.\-]*)
    |(?P<text>"(?:{_ESCAPE}|[^"\\\r\n])*")
    |(?P<range>\[\^?(?:{_RANGE_ESCAPE}|[^\]\\\r\n])*\])
    |(?P<count>\{{[ \t]*\d+[ \t]*(?:,[ \t]*\d*[ \t]*)?\}})
    |(?P<sign>[()|*+?])
    """,
    re.VERBOSE | re.ASCII,
)


class EbnfError(ValueError):
    """A grammar's error and its line."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


_Sequence: TypeAlias = list["_Element"]


@dataclass(frozen=True, slots=True)
class _Element:
    """A rule's name, or alternatives; neither is a terminal."""

    name: str = ""
    alternatives: tuple[_Sequence, ...] = ()
    is_optional: bool = False

    def names(self) -> Iterator[str]:
        """Every name of a rule within it."""
        if self.name:
            yield self.name
        for sequence in self.alternatives:
            for each in sequence:
                yield from each.names()

    def ends(self, known: set[str]) -> bool:
        """Return whether some text completes it, if the rules in `known` can be completed."""
        if self.is_optional or (not self.name and not self.alternatives):
            return True
        if self.name:
            return self.name in known
        return any(all(each.ends(known) for each in sequence) for sequence in self.alternatives)


def check_ebnf(grammar: str) -> None:
    """Check a grammar's syntax, its names, and that each rule can come to an end.

    Raises:
        EbnfError: saying what is wrong.
    """
    rules = _Parser(list(_tokens(grammar))).rules()
    if ROOT not in rules:
        raise EbnfError(f"no rule is called {ROOT!r}")
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, body in rules.items():
        for used in set(body.names()):
            users[used].append(name)
    finite: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in finite and rules[name].ends(finite):
            finite.add(name)
            waiting += users[name]
    if endless := rules.keys() - finite:
        raise EbnfError(f"rule {min(endless)!r} never comes to an end")


def _tokens(grammar: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            raise EbnfError(f"line {line}: {grammar[at : at + 20]!r} is unexpected")
        if match.lastgroup != "blank":
            assert match.lastgroup is not None
            yield _Token(match.lastgroup, match[0], line)
        line += match.lastgroup == "line"
        at = match.end()


class _Parser:
    """Reads the tokens of one grammar."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._names: dict[str, int] = {}
        """Rules that are used, each with a line."""

    def rules(self) -> dict[str, _Element]:
        """Return the body of each rule."""
        rules: dict[str, _Element] = {}
        while (token := self._next()) is not None:
            if token.kind != "rule" or (self._at > 1 and self._tokens[self._at - 2].kind != "line"):
                raise EbnfError(f"line {token.line}: {token.text!r} stands where a rule has to begin")
            name = token.text.removesuffix("::=").strip()
            if name in rules:
                raise EbnfError(f"line {token.line}: rule {name!r} is defined twice")
            rules[name] = self._alternatives(depth=1)
            if len(rules) > MAX_RULES:
                raise EbnfError(f"more than {MAX_RULES} rules")
        for name, line in self._names.items():
            if name not in rules:
                raise EbnfError(f"line {line}: rule {name!r} is not defined")
        return rules

    def _alternatives(self, depth: int) -> _Element:
        if depth > MAX_NESTING:
            raise EbnfError(f"more than {MAX_NESTING} parentheses in each other")
        alternatives = [self._sequence(depth)]
        while self._peek("|"):
            self._next()
            alternatives.append(self._sequence(depth))
        return _Element(alternatives=tuple(alternatives))

    def _sequence(self, depth: int) -> _Sequence:
        elements: _Sequence = []
        while (element := self._element(depth)) is not None:
            elements.append(self._repeated(element))
        if not elements:
            raise EbnfError(f'line {self._line}: an alternative is empty; an empty text is ""')
        return elements

    def _element(self, depth: int) -> _Element | None:
        token = self._peek_any()
        if token is None or token.kind == "rule" or token.text in ("|", ")"):
            return None
        self._next()
        match token.kind:
            case "text" | "range":
                _check_characters(token)
                return _Element()
            case "name":
                self._names.setdefault(token.text, token.line)
                return _Element(name=token.text)
        if token.text != "(":
            raise EbnfError(f"line {token.line}: {token.text!r} repeats nothing")
        if self._peek(")"):
            self._next()
            return _Element()
        inner = self._alternatives(depth + 1)
        if not self._peek(")"):
            raise EbnfError(f"line {token.line}: a parenthesis is not closed")
        self._next()
        return inner

    def _repeated(self, element: _Element) -> _Element:
        token = self._peek_any()
        if token is None or (token.kind != "count" and token.text not in ("*", "+", "?")):
            return element
        self._next()
        is_optional = token.text in ("*", "?")
        if token.kind == "count":
            low, _, high = token.text.strip("{}").partition(",")
            if len(low) > 9 or len(high) > 9 or (high.strip() and int(high) < int(low)):
                raise EbnfError(f"line {token.line}: {token.text} is no range of counts")
            is_optional = int(low) == 0
        return _Element(alternatives=([element],), is_optional=is_optional)

    @property
    def _line(self) -> int:
        return self._tokens[min(self._at, len(self._tokens) - 1)].line if self._tokens else 1

    def _peek_any(self) -> _Token | None:
        """The next token that is no line's end."""
        while self._at < len(self._tokens) and self._tokens[self._at].kind == "line":
            self._at += 1
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _peek(self, text: str) -> bool:
        token = self._peek_any()
        return token is not None and token.text == text

    def _next(self) -> _Token | None:
        token = self._peek_any()
        self._at += token is not None
        return token


def _check_characters(token: _Token) -> None:
    """Refuse characters that do not exist, and ranges that run backwards."""
    pattern = rf"{_RANGE_ESCAPE}|." if token.kind == "range" else rf"{_ESCAPE}|."
    inner = token.text[1:-1]
    items = re.findall(pattern, inner.removeprefix("^") if token.kind == "range" else inner)
    codes = [_code(item) for item in items]
    if max(codes, default=0) > _MAX_CODE:
        raise EbnfError(f"line {token.line}: {token.text} has a character that does not exist")
    at = 0
    while token.kind == "range" and at < len(items):
        is_range = at + 2 < len(items) and items[at + 1] == "-"
        if is_range and codes[at] > codes[at + 2]:
            raise EbnfError(f"line {token.line}: {items[at]}-{items[at + 2]} runs backwards")
        at += 3 if is_range else 1


def _code(item: str) -> int:
    """The code point of a character or an escape."""
    if not item.startswith("\\") or item == "\\":
        return ord(item)
    if item[1] in "xuU":
        return int(item[2:], 16)
    return _CONTROLS.get(item[1], ord(item[1]))
