"""Which JSON schemas xgrammar keeps to, keyword by keyword.

xgrammar compiles many schemas whose keywords it then ignores, or follows only roughly. Only those count as
kept whose outputs are always valid; the other library refuses by name what it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from baton_core.requests.structured_outputs import StructuredOutputsParams

_FREE: Final = frozenset({"type", "$defs", "definitions"})
_ALONE: Final = frozenset({"$ref", "const", "enum", "anyOf"})
"""Beside one of these xgrammar looks at nothing else."""
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


def unkept_part(params: StructuredOutputsParams) -> str | None:
    """Return what xgrammar would not keep to in a form; None where it keeps to all of it."""
    is_compact = params.disable_any_whitespace
    if params.json is not None:
        return unkept_keyword(json.loads(params.json), is_compact=is_compact)
    if params.json_object and is_compact:
        return "disable_any_whitespace"
    if params.structural_tag is not None:
        if is_compact:
            return "disable_any_whitespace"
        for schema in _schemas_within(json.loads(params.structural_tag)):
            if (keyword := unkept_keyword(schema, is_compact=is_compact)) is not None:
                return keyword
    return None


def _schemas_within(tag: Any) -> Iterator[Any]:
    """The schemas of a structural tag in either notation."""
    if isinstance(tag, list):
        for each in tag:
            yield from _schemas_within(each)
    elif isinstance(tag, dict):
        for key, value in tag.items():
            if key in ("json_schema", "schema"):
                yield json.loads(value) if isinstance(value, str) else value
            else:
                yield from _schemas_within(value)


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
            if keyword in _ROUGH:
                return repr(keyword)
        if (reason := _unkept_combination(part)) is not None:
            return reason
        if is_compact and _has_open_place(part):
            return "a place for any value"
    return None


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
    return None if constrained <= known else f"{sorted(constrained - known)[0]!r} beside 'type'"


def _agrees_with_type(part: dict[str, Any]) -> bool:
    """Whether 'type' says nothing that `const`, `enum` or `anyOf` does not."""
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
