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
from baton_router.output_parsing.output_parser import Tool
from baton_router.output_parsing.tool_parser import ToolParser


class RequiredToolsParser(ToolParser):
    """Reads what `required_tools_schema` enforces."""

    def __init__(self, *, choose_id: ChooseId = random_call_id) -> None:
        super().__init__(choose_id=choose_id)
        self._calls = JsonCallList(self._out)

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

    Definitions move from the tools' schemas to the top, where their references point.

    Raises:
        InvalidRequestError: two tools define one name differently.
    """
    definitions: dict[str, dict[str, Any]] = {}
    calls = [_call_schema(tool, definitions) for tool in tools]
    return {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}, **definitions}


def named_tool_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON schema of the arguments of `tool`."""
    return dict(tool.parameters or {"type": "object", "properties": {}})


def _call_schema(tool: Tool, definitions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    parameters = named_tool_schema(tool)
    for keyword in ("$defs", "definitions"):
        defined = parameters.pop(keyword, {})
        if not isinstance(defined, Mapping):
            raise InvalidRequestError(f"tools.function.parameters.{keyword}", defined, "an object of schemas")
        for name, schema in defined.items():
            if definitions.setdefault(keyword, {}).setdefault(name, schema) != schema:
                field = f"tools.function.parameters.{keyword}.{name}"
                raise InvalidRequestError(field, schema, "the same definition in all tools")
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [tool.name]}, "parameters": parameters},
        "required": ["name", "parameters"],
    }
