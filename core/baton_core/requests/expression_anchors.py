"""Resolves the anchors of an expression: the result matches the same whole texts without any.

An anchor may stand where each text that it matches begins or ends, also at the ends of alternatives; anywhere
else it is refused.
"""

from __future__ import annotations

from typing import Final

from baton_core.requests.expression_tree import (
    EMPTY,
    Anchor,
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    complement,
    sequence,
)

_FREE_TEXT: Final = Repeat(Characters(complement(())), 0, None)


class AnchorError(ValueError):
    """Raised for an anchor that cannot be resolved."""


def hold_to_whole(tree: Node) -> Node:
    """Return what matches a text where `tree` matches all of it.

    Raises:
        AnchorError: an anchor is not at an end.
    """
    return _held(tree, EMPTY, EMPTY)


def hold_within(tree: Node) -> Node:
    """Return what matches a text where `tree` is found in it.

    Raises:
        AnchorError: an anchor is not at an end.
    """
    return _held(tree, _FREE_TEXT, _FREE_TEXT)


def _held(node: Node, start: Node | None, end: Node | None) -> Node:
    """Return `node` between what may precede and follow it unless it is anchored.

    None stands for other parts of the expression, beside which there may be no anchor.
    """
    if isinstance(node, Choice):
        return Choice(tuple(_held(option, start, end) for option in node.options))
    parts = list(node.parts) if isinstance(node, Sequence) else [node]
    while start is not None and parts and parts[0] == Anchor(is_end=False):
        start = EMPTY
        del parts[0]
    while end is not None and parts and parts[-1] == Anchor(is_end=True):
        end = EMPTY
        del parts[-1]
    if not parts:
        return end or EMPTY if start in (None, EMPTY) else start
    if len(parts) == 1 and isinstance(parts[0], Choice):
        return _held(parts[0], start, end)
    last = len(parts) - 1
    held = [
        _held(part, start if at == 0 else None, end if at == last else None)
        if isinstance(part, Choice)
        else _without_anchor(part)
        for at, part in enumerate(parts)
    ]
    before = EMPTY if isinstance(parts[0], Choice) else start or EMPTY
    after = EMPTY if isinstance(parts[-1], Choice) else end or EMPTY
    return sequence((before, *held, after))


def _without_anchor(part: Node) -> Node:
    match part:
        case Anchor(is_end):
            name = "$" if is_end else "^"
            raise AnchorError(f"an anchor {name} that is not at the {'end' if is_end else 'begin'}")
        case Repeat(inner, low, high):
            return Repeat(_held(inner, None, None), low, high)
    return part
