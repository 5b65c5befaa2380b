"""Calls that a request demands: reading them, and the schemas that enforce them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_router.output_parsing.output_parser import (
    ParsedOutput,
    Tool,
    ToolCall,
)
from baton_router.output_parsing.tools_forced import (
    NamedToolParser,
    RequiredToolsParser,
    named_tool_schema,
    required_tools_schema,
)
from tests.unit.router.output_parsers import content, read


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_required_calls_are_a_list(size: int) -> None:
    text = ' [{"name": "f", "parameters": {"a": 1}},\n{"name": "g", "parameters": {}}] '
    answer = read(RequiredToolsParser(choose_id=lambda: "x"), text, size)
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("f", '{"a": 1}'), ("g", "{}")]
    assert answer.content is None
    assert read(RequiredToolsParser(), "no list", size) == content("no list")


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_named_call_is_its_arguments(size: int) -> None:
    answer = read(NamedToolParser("f", choose_id=lambda: "x"), '\n{"a": {"b": 1}}\n', size)
    assert answer == ParsedOutput(
        content=None,
        reasoning=None,
        tool_calls=(ToolCall(call_id="x", name="f", arguments='{"a": {"b": 1}}'),),
    )
    assert read(NamedToolParser("f"), "no object", size) == content("no object")


def test_the_schema_of_required_calls_has_one_branch_per_tool_and_hoisted_definitions() -> None:
    city: dict[str, Any] = {"type": "string"}
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "$defs": {"City": city},
    }
    tools = [Tool(name="f", parameters=parameters), Tool(name="g")]
    assert required_tools_schema(tools) == {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "enum": ["f"]},
                        "parameters": {
                            "type": "object",
                            "properties": {"city": {"$ref": "#/$defs/City"}},
                        },
                    },
                    "required": ["name", "parameters"],
                },
                {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "enum": ["g"]},
                        "parameters": {"type": "object", "properties": {}},
                    },
                    "required": ["name", "parameters"],
                },
            ],
        },
        "$defs": {"City": city},
    }
    assert parameters["$defs"] == {"City": city}
    assert named_tool_schema(tools[0]) == parameters
    assert named_tool_schema(tools[1]) == {"type": "object", "properties": {}}


def test_definitions_that_differ_are_refused() -> None:
    tools = [Tool(name=name, parameters={"$defs": {"A": {"type": name}}}) for name in ("string", "number")]
    with pytest.raises(InvalidRequestError, match=r"\$defs\.A"):
        required_tools_schema(tools)
