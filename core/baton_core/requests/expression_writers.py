"""Writes the tree of an expression as the libraries read it: for Rust's `regex` and in the notation of GBNF.

All characters but letters and digits are written by their numbers, so no parser finds a meaning of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from baton_core.requests.expression_tree import (
    Anchor,
    Characters,
    Choice,
    Node,
    Ranges,
    Repeat,
    Sequence,
    has_properties,
)


@dataclass(frozen=True, slots=True)
class _Notation:
    """Writers of one expression language, one for each kind of node."""

    code: Callable[[int], str]
    literal: Callable[[str], str]
    """Writes characters in a row, each written by `code`."""
    group: str
    separator: str
    empty: str


def rust_regex(tree: Node) -> str:
    """Write a tree as an expression of Rust's `regex`, as llguidance reads it."""
    return _written(tree, _RUST)


def gbnf(tree: Node) -> str:
    """Write a tree as the body of a rule, as xgrammar reads it.

    Raises:
        ValueError: the tree has Unicode properties, for which this notation has no words.
    """
    if has_properties(tree):
        raise ValueError("Unicode properties such as \\p{L} cannot be written")
    return _written(tree, _GBNF)


def _written(node: Node, notation: _Notation) -> str:
    match node:
        case Characters():
            return _literal([node], notation) if node.is_single else _set(node, notation)
        case Repeat(part, low, high):
            return _atom(part, notation) + _count(low, high)
        case Choice(options):
            bar = f"{notation.separator}|{notation.separator}"
            return bar.join(_written(option, notation) for option in options)
        case Sequence(parts):
            return _row(parts, notation)
        case Anchor():
            raise AssertionError("the parser leaves no anchors")


def _row(parts: tuple[Node, ...], notation: _Notation) -> str:
    """Write one part after the other, characters that stand in a row as one literal."""
    if not parts:
        return notation.empty
    written: list[str] = []
    for is_single, run in groupby(parts, key=_is_single):
        if is_single:
            written.append(_literal(list(run), notation))
        else:
            written += [
                _atom(part, notation) if isinstance(part, Choice) else _written(part, notation)
                for part in run
            ]
    return notation.separator.join(written)


def _atom(node: Node, notation: _Notation) -> str:
    written = _written(node, notation)
    return written if isinstance(node, Characters) else f"{notation.group}{written})"


def _count(low: int, high: int | None) -> str:
    match (low, high):
        case (0, None):
            return "*"
        case (1, None):
            return "+"
        case (0, 1):
            return "?"
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


def _set(node: Characters, notation: _Notation) -> str:
    sign = "^" if node.is_negated else ""
    properties = "".join(f"\\{name}" for name in node.properties)
    return f"[{sign}{_ranges(node.ranges, notation)}{properties}]"


def _ranges(ranges: Ranges, notation: _Notation) -> str:
    code = notation.code
    return "".join(code(low) if low == high else f"{code(low)}-{code(high)}" for low, high in ranges)


def _literal(nodes: list[Node], notation: _Notation) -> str:
    codes = [node.ranges[0][0] for node in nodes if isinstance(node, Characters)]
    return notation.literal("".join(map(notation.code, codes)))


def _is_single(node: Node) -> bool:
    return isinstance(node, Characters) and node.is_single


def _plain(code: int) -> str | None:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else None


_RUST: Final = _Notation(
    code=lambda code: _plain(code) or f"\\x{{{code:X}}}",
    literal=str,
    group="(?:",
    separator="",
    empty="(?:)",
)
_GBNF: Final = _Notation(
    code=lambda code: _plain(code) or f"\\U{code:08X}",
    literal='"{}"'.format,
    group="(",
    separator=" ",
    empty='""',
)
