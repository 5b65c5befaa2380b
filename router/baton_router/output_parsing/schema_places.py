"""Moves JSON schemas into others, where their references into themselves point to the new place.

Names that hold in a whole schema, `$anchor` and the `$id` at the top, are left out and references to them
become pointers: two schemas in one may have the same names. A schema within that has an `$id` is a whole of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urljoin

from baton_core.requests.schema_patterns import NAMED

_OF_VALUES: Final = ("const", "default", "enum", "examples")
"""Keywords whose values are no schemas."""
_OF_NAMED_SCHEMAS: Final = NAMED | {"dependencies"}
"""Keywords whose values are objects of schemas."""


def moved_schema(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a whole schema as it is at `place`, a pointer such as `#/$defs/a`."""
    base = schema.get("$id")
    inner = {keyword: value for keyword, value in schema.items() if keyword != "$id"}
    if not isinstance(base, str):
        return _Move(schema, place, "").result
    if any(True for _ in wholes_within(inner)):  # relative references to them are resolved by the base
        return dict(schema)
    return _Move(inner, place, base.removesuffix("#")).result


def wholes_within(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schemas with an `$id` within one, itself included, each after that."""
    if isinstance(schema, list):
        for each in schema:
            yield from wholes_within(each)
    elif isinstance(schema, Mapping):
        if _is_whole(schema):
            yield schema["$id"], schema
        for keyword, value in schema.items():
            if keyword in _OF_NAMED_SCHEMAS and isinstance(value, Mapping):
                yield from wholes_within(list(value.values()))
            elif keyword not in _OF_VALUES:
                yield from wholes_within(value)


class _Move:
    """One schema's move; `base` is its own name, empty without one."""

    def __init__(self, schema: Mapping[str, Any], place: str, base: str) -> None:
        self._place = place
        self._base = base
        self._anchors: dict[str, str] = dict(_anchors(schema, place))
        self.result: dict[str, Any] = self._moved(schema)

    def _moved(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._moved(each) for each in schema]
        if not isinstance(schema, Mapping) or _is_whole(schema):
            return schema
        return {
            keyword: self._moved_value(keyword, value)
            for keyword, value in schema.items()
            if keyword != "$anchor"
        }

    def _moved_value(self, keyword: str, value: Any) -> Any:
        """Return the value of one keyword of a schema, moved."""
        if keyword == "$ref" and isinstance(value, str):
            return self._moved_reference(value)
        if keyword in _OF_VALUES:
            return value
        if keyword in _OF_NAMED_SCHEMAS and isinstance(value, Mapping):
            return {name: self._moved(schema) for name, schema in value.items()}
        return self._moved(value)

    def _moved_reference(self, reference: str) -> str:
        name, _, fragment = reference.partition("#")
        if name not in ("", self._base) and _joined(self._base, name) != self._base:
            return reference
        if not fragment or fragment.startswith("/"):
            return self._place + fragment
        return self._anchors.get(fragment, reference)


def _anchors(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """The names of schemas within one at `place`, itself included, each with the pointer to it."""
    if isinstance(schema, list):
        for index, each in enumerate(schema):
            yield from _anchors(each, f"{place}/{index}")
    elif isinstance(schema, Mapping) and not _is_whole(schema):
        if isinstance(anchor := schema.get("$anchor"), str):
            yield anchor, place
        for keyword, value in schema.items():
            if keyword in _OF_NAMED_SCHEMAS and isinstance(value, Mapping):
                for name, inner in value.items():
                    yield from _anchors(inner, f"{place}/{keyword}/{_escaped(name)}")
            elif keyword not in _OF_VALUES:
                yield from _anchors(value, f"{place}/{keyword}")


def _is_whole(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("$id"), str)


def _joined(base: str, reference: str) -> str:
    """Return a reference from a schema of this name; as it is where it is no address."""
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _escaped(name: str) -> str:
    """Return a name as a part of a pointer that stands in a reference."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~$")
