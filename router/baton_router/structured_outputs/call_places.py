"""Finds the tools in a schema of calls that a request demands, so that errors name the one that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

PLACE_OF_CALL: Final = "items.anyOf[].properties.parameters"
"""The place of a tool's schema in that of the calls; its number stands in `[]`."""


def parameters_of_calls(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schema of each tool's arguments, after its place, of a schema of `required_tools_schema`.

    Other schemas have none.
    """
    match schema:
        case {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": [*calls]}}:
            shared = schema.get("$defs")
        case _:
            return
    for number, call in enumerate(calls):
        match call:
            case {"properties": {"name": {"enum": [str()]}, "parameters": dict() as parameters}}:
                place = PLACE_OF_CALL.replace("[]", f"[{number}]")
                yield place, _definitions(parameters, shared) | parameters
            case _:
                return


def _definitions(parameters: dict[str, Any], shared: Any) -> dict[str, Any]:
    """Return the definition that a call has among those of all calls: each has one of its own at most."""
    name = str(parameters.get("$ref", "")).removeprefix("#/$defs/")
    return {"$defs": {name: shared[name]}} if isinstance(shared, dict) and name in shared else {}
