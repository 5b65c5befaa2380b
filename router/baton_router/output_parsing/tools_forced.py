"""Calls that the request demands: structured output makes the model write plain JSON.

With `tool_choice` "required" it is a list of `{"name": "f", "parameters": {...}}`, with a named function just
the object of its arguments. The schemas that demand this stand here, beside the parsers that read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baton_core.errors import InvalidRequestError
from baton_router.output_parsing.delta_writer import ChooseId, random_call_id
from baton_router.output_parsing.json_call import JsonCallList
from baton_router.output_parsing.json_scanner import JsonScanner
from baton_router.output_parsing.output_parser import OutputDelta, Tool
from baton_router.output_parsing.schema_places import moved_schema, wholes_within
from baton_router.output_parsing.tool_parser import ToolParser


class RequiredToolsParser(ToolParser):
    """Reads what `required_tools_schema` enforces. Syntax of a call that the end cuts off is no content."""

    def __init__(self, *, choose_id: ChooseId = random_call_id) -> None:
        super().__init__(choose_id=choose_id)
        self._calls = JsonCallList(self._out)

    def flush(self) -> list[OutputDelta]:
        if self._state == self._start:
            self._out.discard_kept()
        return super().flush()

    def _start(self, text: str, at: int) -> int:
        return self._read(self._calls, text, at, then=self._plain, otherwise=self._plain)


class NamedToolParser(ToolParser):
    """Reads what `named_tool_schema` enforces: the arguments of the function `name`."""

    def __init__(self, name: str, *, choose_id: ChooseId = random_call_id) -> None:
        super().__init__(choose_id=choose_id)
        self._name = name
        self._scanner = JsonScanner()

    def _start(self, text: str, at: int) -> int:
        if text[at].isspace():
            self._out.text(text[at])
            return at + 1
        if text[at] == "{":
            self._out.start_call(self._name)
            self._state = self._in_arguments
        else:
            self._state = self._plain
        return at

    def _in_arguments(self, text: str, at: int) -> int:
        return self._read_arguments(self._scanner, text, at, then=self._plain)


def required_tools_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the JSON schema of one or more calls of any of `tools`.

    A tool's schema with references into itself stands in `$defs`: xgrammar follows none through lists.

    Raises:
        InvalidRequestError: a tool's schema is nested too deeply, or two schemas in them have one `$id`.
    """
    shared: dict[str, Any] = {}
    try:
        calls = [_call_schema(tool, f"tool_{number}", shared) for number, tool in enumerate(tools)]
        _check_ids([*calls, *shared.values()])
    except RecursionError:
        raise InvalidRequestError("tools", "nested too deeply", "schemas with fewer levels") from None
    schema = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}}
    return {**schema, "$defs": shared} if shared else schema


def named_tool_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON schema of the arguments of `tool`, which are an object."""
    return {**(tool.parameters or {"properties": {}}), "type": "object"}


def _check_ids(schemas: Sequence[Mapping[str, Any]]) -> None:
    known: dict[str, Mapping[str, Any]] = {}
    for name, schema in wholes_within(schemas):
        if known.setdefault(name, schema) != schema:
            raise InvalidRequestError("tools", f"$id {name!r} of two schemas", "an $id of one schema")


def _call_schema(tool: Tool, name: str, shared: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a call; one with references goes to `shared` under `name`."""
    parameters = named_tool_schema(tool)
    place = f"#/$defs/{name}"
    if (moved := moved_schema(parameters, place)) != parameters:
        shared[name], parameters = moved, {"$ref": place}
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [tool.name]}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
