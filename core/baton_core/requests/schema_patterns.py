"""Writes the patterns of a JSON schema so that they have one meaning: see `regex_syntax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from baton_core.requests.expression_tree import Characters, Choice, Node, Repeat, Sequence, normal_ranges
from baton_core.requests.expression_writers import rust_regex
from baton_core.requests.regex_syntax import RegexError, parse_search

NAMED: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
"""Keywords whose value holds a schema under each name."""
SINGLE: Final = frozenset(
    {
        *("items", "additionalProperties", "additionalItems", "not", "contains", "if", "then", "else"),
        *("propertyNames", "unevaluatedProperties", "unevaluatedItems"),
    }
)
"""Keywords whose value may be a schema."""
SEVERAL: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
"""Keywords whose value may be a list of schemas."""


_FORMATS: Final = frozenset(
    ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
)
"""Formats that llguidance keeps to."""


def with_plain_patterns(schema: Any) -> Any:
    """Return the schema with each pattern as one that matches whole strings; values in it stay as they are.

    Formats that no library knows are left out: JSON Schema takes those for notes that allow every string. So
    is `propertyNames` that allows every name, which llguidance refuses.

    Raises:
        RegexError: a pattern is wrong, or two of an object mean the same.
    """
    return rewritten(schema, _make_plain)


def rewritten(schema: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    """Return a copy of the schema; `change` mutates each object in it that is a schema, inner ones first."""
    if not isinstance(schema, dict):
        return schema
    copy = {keyword: _rewritten_value(keyword, value, change) for keyword, value in schema.items()}
    change(copy)
    return copy


def _rewritten_value(keyword: str, value: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    if keyword in NAMED and isinstance(value, dict):
        return {name: rewritten(inner, change) for name, inner in value.items()}
    if keyword in SEVERAL and isinstance(value, list):
        return [rewritten(inner, change) for inner in value]
    return rewritten(value, change) if keyword in SINGLE else value


def _make_plain(schema: dict[str, Any]) -> None:
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = _whole(pattern)
    if isinstance(named := schema.get("patternProperties"), dict):
        schema["patternProperties"] = {_whole(name): inner for name, inner in named.items()}
        if len(schema["patternProperties"]) < len(named):
            raise RegexError("two keys of 'patternProperties' mean the same")
    if isinstance(form := schema.get("format"), str) and form not in _FORMATS:
        del schema["format"]
    if schema.get("propertyNames") in (True, {}, {"type": "string"}):
        del schema["propertyNames"]


def _whole(pattern: str) -> str:
    try:
        return f"^(?:{rust_regex(_without_nul(parse_search(pattern)))})$"
    except RegexError as error:
        raise RegexError(f"pattern {pattern!r}: {error}") from None


def _without_nul(node: Node) -> Node:
    """Leave U+0000 out of sets of characters.

    llguidance (1.9) lets quotes and backslashes into a JSON string where a set has all of the control
    characters. So no output has that character, which JSON has to write as an escape.
    """
    match node:
        case Characters(ranges, properties, is_negated=True):
            return Characters(normal_ranges(((0, 0), *ranges)), properties, is_negated=True)
        case Characters(((0, high), *others), properties) if high > 0:
            return Characters(((1, high), *others), properties)
        case Sequence(parts):
            return Sequence(tuple(map(_without_nul, parts)))
        case Choice(options):
            return Choice(tuple(map(_without_nul, options)))
        case Repeat(part, low, high):
            return Repeat(_without_nul(part), low, high)
    return node
