"""Keywords of schemas that each library supports: xgrammar's list, and llguidance's one exception.

xgrammar compiles many schemas whose keywords it then ignores, or follows only roughly. Only those count as
kept whose outputs are always valid; the other library refuses by name what it does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from baton_core.requests.expression_tree import has_properties
from baton_core.requests.grammar_limits import is_lark
from baton_core.requests.regex_syntax import RegexError, parse_regex
from baton_core.requests.schema_numbers import (
    BOUNDS,
    XGRAMMAR_DECIMALS,
    float_counts,
    has_short_number,
    is_float,
    is_int64,
    listed_numbers,
    number_bounds,
    number_unkept_by_guidance,
)
from baton_core.requests.structured_outputs import StructuredOutputsParams

_FREE: Final = frozenset({"type", "$defs", "definitions"})
_ALONE: Final = frozenset({"$ref", "const", "enum", "anyOf"})
"""Keywords beside which xgrammar ignores all others."""
_BY_TYPE: Final = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "string": frozenset[str](),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
_KEPT: Final = _FREE | _ALONE | frozenset().union(*_BY_TYPE.values())
_PLAIN_REF: Final = re.compile(r"#(?:/(?!\d+(?:/|\Z))[A-Za-z0-9_$.-]+)*")
"""Pointers in this schema without escapes or indexes: xgrammar takes others for any value, or finds none."""
_MAX_INTEGER: Final = 2**62
_ROUGH: Final = frozenset(
    {
        *("$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef", "id"),
        *("allOf", "else", "if", "not", "oneOf", "then"),
        *("format", "maxLength", "minLength", "multipleOf", "pattern"),
        *("additionalItems", "contains", "maxContains", "minContains", "unevaluatedItems", "uniqueItems"),
        *("dependencies", "dependentRequired", "dependentSchemas", "maxProperties", "minProperties"),
        *("patternProperties", "propertyNames", "unevaluatedProperties"),
    }
)
"""Ignored, or followed so that outputs may be wrong: patterns and lengths let quotes and control characters
into strings, `oneOf` is taken for `anyOf`. Keywords in neither set say nothing about validity."""
_OF_PYTHON: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


def unsupported_part(params: StructuredOutputsParams) -> str | None:
    """Return the part of a grammar that xgrammar does not enforce; None where it enforces all of it."""
    is_compact = params.disable_any_whitespace
    if params.json is not None:
        return unkept_keyword(json.loads(params.json), is_compact=is_compact)
    if params.regex is not None:
        return _unkept_in_regex(params.regex)
    if params.json_object and is_compact:
        return "disable_any_whitespace"
    if params.structural_tag is not None:
        if is_compact:
            return "disable_any_whitespace"
        tag = json.loads(params.structural_tag)
        unkept = (unkept_keyword(schema, is_compact=is_compact) for schema in _schemas_within(tag))
        unkept_parts = map(_unkept_tag_part, _tag_parts(tag))
        return next((each for each in (*unkept, *unkept_parts) if each is not None), None)
    return None


def _unkept_in_regex(pattern: str) -> str | None:
    try:
        tree = parse_regex(pattern)
    except RegexError as error:
        return str(error)
    return "a Unicode property such as \\p{L}" if has_properties(tree) else None


def _unkept_tag_part(part: dict[str, Any]) -> str | None:
    if part.get("type") == "regex":
        return _unkept_in_regex(str(part.get("pattern", "")))
    if part.get("type") == "grammar" and is_lark(str(part.get("grammar", ""))):
        return "a grammar in Lark's notation"
    return "'max_whitespace_cnt' of 0" if part.get("max_whitespace_cnt") == 0 else None


def _tag_parts(tag: Any) -> Iterator[dict[str, Any]]:
    """The objects of a structural tag; not those of its schemas."""
    if isinstance(tag, list):
        for each in tag:
            yield from _tag_parts(each)
    elif isinstance(tag, dict):
        yield tag
        for key, value in tag.items():
            if key not in ("json_schema", "schema"):
                yield from _tag_parts(value)


def _schemas_within(tag: Any) -> Iterator[Any]:
    """The schemas of a structural tag in either notation."""
    for part in _tag_parts(tag):
        for value in (part[key] for key in ("json_schema", "schema") if key in part):
            yield json.loads(value) if isinstance(value, str) else value


def unkept_keyword(schema: Any, *, is_compact: bool) -> str | None:
    """Return what xgrammar does not keep to in a schema; None where it keeps to all of it.

    Args:
        is_compact: whether no whitespace may come between parts; xgrammar writes some within free values.
    """
    for part in _schemas(schema):
        if not isinstance(part, dict):
            if is_compact:
                return "a place for any value"
            continue
        for keyword in part:
            # The name of the whole says nothing where all references are pointers into it.
            if keyword in _ROUGH and not (keyword == "$id" and part is schema):
                return repr(keyword)
        if (reason := _unkept_value(part) or _unkept_combination(part)) is not None:
            return reason
        if is_compact and _has_open_place(part):
            return "a place for any value"
    return None


def _unkept_value(part: dict[str, Any]) -> str | None:
    """Name a keyword that xgrammar keeps to, but not with the value that it has here."""
    if not _PLAIN_REF.fullmatch(str(part.get("$ref", "#"))):
        return f"'$ref' {part['$ref']!r}"
    for keyword in ("anyOf", "enum", "type"):
        if part.get(keyword) == []:
            return f"an empty {keyword!r}"
    for inner in (*_values(part.get("properties")), *_values(part.get("anyOf"))):
        if inner is False:
            return "the schema false"
    if "integer" in _types_of(part):
        for keyword in BOUNDS:
            bound = part.get(keyword, 0)
            if not isinstance(bound, int) or abs(bound) > _MAX_INTEGER:
                return f"{keyword!r} of {bound!r} for integers"
    if "number" in _types_of(part):
        for keyword, bound in number_bounds(part):
            if isinstance(bound, int) and not is_float(bound):
                return f"{keyword!r} of {bound!r}, which no float holds exactly,"
        if not has_short_number(part):
            return f"a range without a number of {XGRAMMAR_DECIMALS} decimals"
    for value in listed_numbers(part):
        if isinstance(value, int) and not is_int64(value):
            return f"the integer {value} beyond 64 bits"
    for keyword in float_counts(part):
        return f"{keyword!r} of {part[keyword]!r}"
    first = part.get("prefixItems")
    if isinstance(first, list) and isinstance(most := part.get("maxItems"), int) and most < len(first):
        return "'maxItems' below the number of 'prefixItems'"
    least = part.get("minItems") if "items" not in part else None
    if isinstance(first, list) and isinstance(least, int) and least > len(first):
        return "'minItems' above the number of 'prefixItems'"
    return None


def _values(inner: Any) -> list[Any]:
    return list(inner.values()) if isinstance(inner, dict) else inner if isinstance(inner, list) else []


def _unkept_combination(part: dict[str, Any]) -> str | None:
    constrained = part.keys() & _KEPT - _FREE
    alone = constrained & _ALONE
    if alone:
        if len(constrained) > 1:
            return f"{sorted(alone)[0]!r} beside other keywords"
        return (
            None if "type" not in part or _agrees_with_type(part) else f"'type' beside {sorted(alone)[0]!r}"
        )
    types = _types_of(part)
    known = frozenset().union(*(_BY_TYPE.get(each, frozenset()) for each in types))
    if not types and constrained:
        return f"{sorted(constrained)[0]!r} without 'type'"
    if "object" in types and not set(part.get("required", ())) <= part.get("properties", {}).keys():
        return "'required' names that 'properties' has not"
    if isinstance(part.get("items"), list):
        return "a list of 'items'"
    if "array" in types and constrained and not constrained & {"items", "prefixItems"}:
        return "a list of any items beside other keywords"
    return None if constrained <= known else f"{sorted(constrained - known)[0]!r} beside 'type'"


def _agrees_with_type(part: dict[str, Any]) -> bool:
    """Return whether 'type' adds nothing to `const`, `enum` or `anyOf`."""
    types = _types_of(part)
    types |= {"integer"} if "number" in types else set()
    if "anyOf" in part:
        inner = [_types_of(each) for each in part["anyOf"] if isinstance(each, dict)]
        return len(inner) == len(part["anyOf"]) and all(each and each <= types for each in inner)
    values = part.get("enum", [part["const"]] if "const" in part else None)
    return isinstance(values, list) and {_OF_PYTHON[type(value)] for value in values} <= types


def _types_of(part: dict[str, Any]) -> set[str]:
    types = part.get("type", [])
    return set(filter(lambda each: isinstance(each, str), types if isinstance(types, list) else [types]))


def _has_open_place(part: dict[str, Any]) -> bool:
    if part.keys() & _ALONE:
        values = part.get("enum", [part.get("const")])
        return any(isinstance(value, dict | list) for value in values)
    types = _types_of(part)
    return (
        not types
        or ("object" in types and "properties" not in part)
        or ("array" in types and "items" not in part)
    )


def _schemas(schema: Any) -> Iterator[Any]:
    """Every schema within one, itself included; not the names and the values that look like schemas."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, dict):
            waiting.extend(_inner_schemas(part))


def _inner_schemas(part: dict[str, Any]) -> Iterator[Any]:
    for keyword in ("properties", "$defs", "definitions"):
        if isinstance(inner := part.get(keyword), dict):
            yield from inner.values()
    for keyword in ("prefixItems", "anyOf"):
        if isinstance(inner := part.get(keyword), list):
            yield from inner
    if "items" in part and not isinstance(part["items"], list | bool):
        yield part["items"]
    if isinstance(inner := part.get("additionalProperties"), dict):
        yield inner


def unkept_by_guidance(params: StructuredOutputsParams) -> str | None:
    """Return the part of a grammar that llguidance does not enforce; None where it enforces all of it."""
    if params.json is not None:
        schemas = [json.loads(params.json)]
    elif params.structural_tag is not None:
        schemas = list(_schemas_within(json.loads(params.structural_tag)))
    else:
        return None
    return number_unkept_by_guidance(list(_objects(schemas)))


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object within a JSON value."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
        waiting.extend(_values(part))
