"""The tree of an expression: what a regular expression means, whatever it was written in.

There is one parser (`regex_syntax`), so an expression has one meaning; each library that compiles it gets the
tree written out (`expression_writers`) without anything that its own parser could take for something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

MAX_CODE: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
"""Code points that no text has."""
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""First and last code points, sorted, with gaps between them."""


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set: in the ranges or with one of the properties, or neither if it is negated."""

    ranges: Ranges
    properties: tuple[str, ...] = ()
    """Unicode's, such as `p{L}`; `P{L}` is what lacks it. Sets without properties are never negated."""
    is_negated: bool = False

    @property
    def is_single(self) -> bool:
        """True if it is one certain character."""
        return not self.properties and len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1]


@dataclass(frozen=True, slots=True)
class Anchor:
    """The begin or the end of the text; the parser leaves none in the tree that it returns."""

    is_end: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other; no parts are the empty text."""

    parts: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part, `low` to `high` times; None stands for any number."""

    part: Node
    low: int
    high: int | None


Node: TypeAlias = Characters | Anchor | Sequence | Choice | Repeat
EMPTY: Final = Sequence()


def normal_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort and join ranges, and leave out surrogates."""
    joined: list[tuple[int, int]] = []
    low_surrogate, high_surrogate = _SURROGATES
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            low, high = joined[-1][0], max(high, joined.pop()[1])
        joined.append((low, high))
    split: list[tuple[int, int]] = []
    for low, high in joined:
        split += [(low, min(high, low_surrogate - 1)), (max(low, high_surrogate + 1), high)]
    return tuple((low, high) for low, high in split if low <= high)


def complement(ranges: Ranges) -> Ranges:
    """Return the code points that are in none of the ranges."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), MAX_CODE]
    return normal_ranges((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


def sequence(parts: Iterable[Node]) -> Node:
    """Put parts in a row; one alone is itself."""
    kept: list[Node] = []
    for part in parts:
        kept += part.parts if isinstance(part, Sequence) else (part,)
    return kept[0] if len(kept) == 1 else Sequence(tuple(kept))


def repeat(part: Node, low: int, high: int | None) -> Node:
    """Repeat a part; what is empty stays so."""
    if part == EMPTY or high == 0:
        return EMPTY
    return part if low == high == 1 else Repeat(part, low, high)


def num_atoms(node: Node) -> int:
    """Count the characters that an expression stands for when its repetitions are written out."""
    match node:
        case Sequence(parts) | Choice(parts):
            return sum(map(num_atoms, parts))
        case Repeat(part, low, high):
            return num_atoms(part) * max(low, high or 0, 1)
    return 1


def has_properties(node: Node) -> bool:
    """Return whether any set of characters is defined by Unicode properties."""
    return any(isinstance(part, Characters) and part.properties for part in _walk(node))


def has_nested_repetition(node: Node) -> bool:
    """Return whether a repeated part contains a repetition or an optional part."""
    repeats = [part for part in _walk(node) if isinstance(part, Repeat)]
    return any(isinstance(inner, Repeat) for outer in repeats for inner in _walk(outer.part))


def _walk(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        match part:
            case Sequence(inner) | Choice(inner):
                waiting.extend(inner)
            case Repeat(repeated, _, _):
                waiting.append(repeated)
