"""JSON schemas whose objects have only the properties that they name."""

from __future__ import annotations

from typing import Any

from baton_core.requests.schema_patterns import NAMED, SEVERAL, SINGLE


def closed_schema(schema: Any) -> Any:
    """Return the schema with `additionalProperties` false where it names properties and is silent on others.

    Source: vLLM's `disable_additional_properties`.
    """
    if not isinstance(schema, dict):
        return schema
    closed = {keyword: _closed(keyword, value) for keyword, value in schema.items()}
    if "properties" in closed or "patternProperties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _closed(keyword: str, value: Any) -> Any:
    if keyword in NAMED and isinstance(value, dict):
        return {name: closed_schema(inner) for name, inner in value.items()}
    if keyword in SEVERAL and isinstance(value, list):
        return [closed_schema(inner) for inner in value]
    return closed_schema(value) if keyword in SINGLE else value
