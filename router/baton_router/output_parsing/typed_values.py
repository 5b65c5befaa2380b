"""Gives a value that the model wrote as bare text the type that the tool's JSON schema asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from baton_router.output_parsing.python_literals import read_literal


def schema_types(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the JSON types that `schema` allows; none if it does not say.

    `root` is the schema that references such as `#/$defs/Colour` point into.
    """
    return frozenset(_types(schema, root, set()))


def typed_json(text: str, types: frozenset[str]) -> str:
    """Return `text` as JSON of one of `types`; as a string if it is of none of them or none is given.

    JSON and Python's notation are understood, and booleans in any case.
    """
    if "boolean" in types and (word := text.strip().lower()) in ("true", "false"):
        return word
    if types - {"string"}:
        for read in (json.loads, read_literal):
            try:
                value = read(text)
                if _type_names(value) & types:
                    return json.dumps(value, ensure_ascii=False, allow_nan=False)
            except (ValueError, RecursionError):
                continue
    return json.dumps(text, ensure_ascii=False)


def _types(schema: object, root: Mapping[str, Any], followed: set[str]) -> Iterator[str]:
    """`followed`: references seen so far; they may be circular."""
    if not isinstance(schema, Mapping):
        return
    match schema.get("type"):
        case str() as name:
            yield name
        case list() as names:
            yield from (name for name in names if isinstance(name, str))
    for keyword in ("anyOf", "oneOf", "allOf"):
        for branch in _list(schema.get(keyword)):
            yield from _types(branch, root, followed)
    for value in (*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])):
        yield from _type_names(value)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and reference not in followed:
        followed.add(reference)
        yield from _types(_resolve(reference, root), root, followed)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _resolve(reference: str, root: Mapping[str, Any]) -> object:
    schema: object = root
    for part in reference[2:].split("/"):
        if not isinstance(schema, Mapping):
            return None
        schema = schema.get(part.replace("~1", "/").replace("~0", "~"))
    return schema


def _type_names(value: object) -> frozenset[str]:
    """The JSON types that `value` is of, strings excepted: a value in quotes has them as part of it."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case list():
            return frozenset({"array"})
        case dict():
            return frozenset({"object"})
    return frozenset()
