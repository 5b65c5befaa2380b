"""JSON schemas whose objects and lists have only the parts that they name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from baton_core.requests.schema_patterns import NAMED, SEVERAL, SINGLE, rewritten

_IN_PLACE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
"""Keywords whose schemas hold for the value itself."""
_PARTS: Final = frozenset({"properties", "patternProperties", "additionalProperties", "prefixItems", "items"})
_CONDITIONS: Final = frozenset(
    ("if", "not", "dependencies", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties")
)


def closed_schema(schema: Any) -> Any:
    """Return the schema with `additionalProperties` false where it names properties and is silent on others.

    Source: vLLM's `disable_additional_properties`.
    """
    return rewritten(schema, _close_object)


def strict_schema(schema: Any) -> Any:
    """Return the schema closed as xgrammar takes it: objects that name properties, lists of `prefixItems`.

    Where several schemas hold for one value, each names a part of its properties, and all stay as they are.
    """
    return schema if any(map(_is_shared, schemas_within(schema))) else rewritten(schema, _close_as_xgrammar)


def strict_tag(tag: Any) -> Any:
    """Return a structural tag in either notation whose schemas are `strict_schema`s."""
    if isinstance(tag, list):
        return [strict_tag(each) for each in tag]
    if not isinstance(tag, dict):
        return tag
    return {
        key: _strict_value(value) if key in ("json_schema", "schema") else strict_tag(value)
        for key, value in tag.items()
    }


def _strict_value(value: Any) -> Any:
    return strict_schema(json.loads(value) if isinstance(value, str) else value)


def _close_object(schema: dict[str, Any]) -> None:
    if "properties" in schema or "patternProperties" in schema:
        schema.setdefault("additionalProperties", False)


def _close_as_xgrammar(schema: dict[str, Any]) -> None:
    """Close what can still be met then."""
    properties, items = schema.get("properties"), schema.get("prefixItems")
    required, least = schema.get("required"), schema.get("minItems", 0)
    names = set(map(str, required)) if isinstance(required, list) else set()
    if isinstance(properties, dict) and names <= properties.keys():
        schema.setdefault("additionalProperties", False)
    if isinstance(items, list) and isinstance(least, int) and least <= len(items):
        schema.setdefault("items", False)


def _is_shared(schema: dict[str, Any]) -> bool:
    """Return whether several schemas may name the parts of the same value."""
    in_place = schema.keys() & _IN_PLACE
    return (
        bool(schema.keys() & _CONDITIONS)
        or len(in_place) > 1
        or (isinstance(every := schema.get("allOf"), list) and len(every) > 1)
        or bool(in_place and schema.keys() & _PARTS)
    )


def schemas_within(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object that is a schema within one, itself included."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        for inner in _inner_schemas(keyword, value):
            yield from schemas_within(inner)


def _inner_schemas(keyword: str, value: Any) -> list[Any]:
    if keyword in NAMED and isinstance(value, dict):
        return list(value.values())
    if keyword in SEVERAL and isinstance(value, list):
        return value
    return [value] if keyword in SINGLE else []
