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
            shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        case _:
            return
    for number, call in enumerate(calls):
        match call:
            case {"properties": {"name": {"enum": [str()]}, "parameters": dict() as parameters}}:
                yield PLACE_OF_CALL.replace("[]", f"[{number}]"), shared | parameters
            case _:
                return
