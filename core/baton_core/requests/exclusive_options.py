"""JSON schemas whose `oneOf` has options of which a value can meet one at most, and so means `anyOf`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

from baton_core.requests.closed_schemas import schemas_within

_Schema = dict[str, Any]
_MAX_LEVELS: Final = 4
"""As many as options of unions are searched for unions."""
_PLAIN: Final = (str, int, float, type(None))


def with_exclusive_options(schema: Any) -> Any:
    """Return the schema with `anyOf` for each `oneOf` whose options exclude each other.

    They do by distinct values in `const` or `enum`, or as objects by such values of one property, their tag.
    As an object without its tag could meet several, the tag becomes a required property.
    """
    schema = deepcopy(schema)
    for part in list(schemas_within(schema)):
        options = part.get("oneOf")
        if not isinstance(options, list) or "anyOf" in part:
            continue
        leaves = [list(_leaves(option, schema)) for option in options]
        if _are_distinct([_values_of_all(each) for each in leaves]) or _require_tag(leaves, schema):
            part["anyOf"] = part.pop("oneOf")
    return schema


def _require_tag(options: Sequence[Sequence[_Schema]], root: Any) -> bool:
    """Return whether a property tells the options; make the one that most of them require required."""
    leaves = [leaf for option in options for leaf in option]
    if not all(leaf.get("type") == "object" and isinstance(leaf.get("properties"), dict) for leaf in leaves):
        return False
    names = [name for name in _first(leaves).get("properties", {}) if _is_tag(name, options, root)]
    if not names:
        return False
    tag = min(names, key=lambda name: sum(name not in leaf.get("required", ()) for leaf in leaves))
    for leaf in leaves:
        if tag not in leaf.get("required", ()):
            leaf["required"] = [*leaf.get("required", ()), tag]
    return True


def _first(leaves: Sequence[_Schema]) -> _Schema:
    return leaves[0] if leaves else {}


def _is_tag(name: str, options: Sequence[Sequence[_Schema]], root: Any) -> bool:
    tags = [[_target(leaf["properties"].get(name), root) for leaf in option] for option in options]
    return _are_distinct([_values_of_all(each) for each in tags])


def _are_distinct(options: Sequence[frozenset[Any] | None]) -> bool:
    known = [values for values in options if values is not None]
    return len(known) == len(options) and len(frozenset().union(*known)) == sum(map(len, known))


def _values_of_all(schemas: Sequence[_Schema]) -> frozenset[Any] | None:
    """The values that the schemas list, each with whether it is a bool; None where one lists none."""
    found = set[tuple[bool, Any]]()
    for schema in schemas:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if not isinstance(values, list) or not all(isinstance(value, _PLAIN) for value in values):
            return None
        found.update((isinstance(value, bool), value) for value in values)
    return frozenset(found)


def _leaves(option: Any, root: Any, num_levels: int = _MAX_LEVELS) -> Iterator[_Schema]:
    """The schemas of an option that may be a union itself."""
    target = _target(option, root)
    inner = target.get("oneOf", target.get("anyOf"))
    if not isinstance(inner, list) or num_levels == 0:
        yield target
        return
    for each in inner:
        yield from _leaves(each, root, num_levels - 1)


def _target(schema: Any, root: Any) -> _Schema:
    """Follow references within `root`; an empty schema where one leads nowhere."""
    seen = set[str]()
    while isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
        if reference in seen or not reference.startswith("#"):
            return {}
        seen.add(reference)
        schema = root
        for name in reference.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else {}
