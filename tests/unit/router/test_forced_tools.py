"""Calls that a request demands: reading them, and the schemas that enforce them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.output_parsing.output_parser import ParsedOutput, Tool, ToolCall
from baton_router.output_parsing.tools_forced import (
    NamedToolParser,
    RequiredToolsParser,
    named_tool_schema,
    required_tools_schema,
)
from baton_router.structured_outputs.call_places import parameters_of_calls
from baton_router.structured_outputs.grammar_checks import check_structured_outputs
from tests.unit.engine.expressions import accepts, backends
from tests.unit.engine.grammars import BACKENDS
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


@pytest.mark.parametrize("text", ["[", ' [{"name": "f", "param', '[{"name": "f", "parameters": {"a": 1}},'])
@pytest.mark.parametrize("size", [1, 1000])
def test_syntax_of_a_required_call_that_is_cut_off_is_no_content(text: str, size: int) -> None:
    answer = read(RequiredToolsParser(choose_id=lambda: "x"), text, size)
    assert answer.content is None
    assert [call.arguments for call in answer.tool_calls] == (['{"a": 1}'] if "1" in text else [])


def test_the_schema_of_required_calls_has_one_branch_per_tool_and_nothing_beside_calls() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [Tool(name="f", parameters=parameters), Tool(name="g")]
    assert required_tools_schema(tools) == {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"name": {"type": "string", "enum": [name]}, "parameters": arguments},
                    "required": ["name", "parameters"],
                    "additionalProperties": False,
                }
                for name, arguments in (("f", parameters), ("g", {"type": "object", "properties": {}}))
            ],
        },
    }
    assert named_tool_schema(tools[0]) == parameters
    assert named_tool_schema(tools[1]) == {"type": "object", "properties": {}}


def test_references_of_a_tool_point_to_where_its_schema_stands() -> None:
    whole = {"$id": "https://example.com/b", "properties": {"c": {"$ref": "#"}}}
    parameters = {
        "properties": {
            "a": {"$ref": "#/$defs/A"},
            "const": {"anyOf": [{"$ref": "#"}, {"const": {"$ref": "#"}}]},
            "named": {"$ref": "#anchor"},
            "whole": whole,
        },
        "$defs": {"A": {"type": "integer"}},
    }
    place = "#/$defs/tool_1"
    schema = required_tools_schema([Tool(name="f"), Tool(name="g", parameters=parameters)])
    assert schema["items"]["anyOf"][1]["properties"]["parameters"] == {"$ref": place}
    assert list(schema["$defs"]) == ["tool_1"]
    assert schema["$defs"]["tool_1"] == {
        "type": "object",
        "properties": {
            "a": {"$ref": f"{place}/$defs/A"},
            "const": {"anyOf": [{"$ref": place}, {"const": {"$ref": "#"}}]},
            "named": {"$ref": "#anchor"},
            "whole": whole,
        },
        "$defs": {"A": {"type": "integer"}},
    }


@pytest.mark.parametrize("library", BACKENDS)
def test_references_of_tools_are_followed_by_every_library(library: str) -> None:
    def tool(kind: str) -> Tool:
        properties = {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/properties/c"}, "c": {"type": "null"}}
        required = {"required": ["a", "b"], "additionalProperties": False}
        return Tool(
            name=kind, parameters={"properties": properties, "$defs": {"A": {"type": kind}}, **required}
        )

    schema = required_tools_schema([tool("integer"), tool("boolean")])
    params = StructuredOutputsParams(json=schema, disable_any_whitespace=True)  # type: ignore[arg-type]
    check_structured_outputs(params)
    grammar = backends(library).compile(params)
    for name, value, is_valid in (("integer", 1, True), ("integer", True, False), ("boolean", True, True)):
        calls = [{"name": name, "parameters": {"a": value, "b": None}}]
        assert accepts(grammar, json.dumps(calls, separators=(",", ":"))) is is_valid


def named(kind: str, reference: str, *, whole: str = "", part: str = "") -> Tool:
    """A tool of one argument of a type, with the same names whatever the type."""
    inner = {"$anchor": "a", "type": kind, **({"$id": part} if part else {})}
    return Tool(
        name=kind,
        parameters={
            **({"$id": whole} if whole else {}),
            "properties": {"a": {"$ref": reference}},
            "required": ["a"],
            "$defs": {"a/b": inner, "list": {"anyOf": [{"$anchor": "c", "type": kind}]}},
        },
    )


@pytest.mark.parametrize("library", BACKENDS)
@pytest.mark.parametrize(
    ("whole", "reference"),
    [
        ("", "#c"),
        ("https://example.com/s", "#c"),
        ("https://example.com/s", "#/$defs/list"),
        ("https://example.com/s#", "https://example.com/s#c"),
        ("https://example.com/s", "s#c"),
    ],
)
def test_names_that_two_tools_have_are_those_of_each(library: str, whole: str, reference: str) -> None:
    schema = required_tools_schema([named(kind, reference, whole=whole) for kind in ("integer", "boolean")])
    assert "$anchor" not in json.dumps(schema)
    assert "$id" not in json.dumps(schema)
    if library == "xgrammar" and reference.endswith("c"):
        return  # it follows no reference into a list
    grammar = backends(library).compile(StructuredOutputsParams(json=json.dumps(schema)))
    for name, value, is_valid in (("integer", 1, True), ("integer", True, False), ("boolean", True, True)):
        assert accepts(grammar, json.dumps([{"name": name, "parameters": {"a": value}}])) is is_valid


def test_a_tools_schema_is_checked_without_those_of_others() -> None:
    schema = required_tools_schema([named(kind, "#a") for kind in ("integer", "null")])
    found = dict(parameters_of_calls(schema))
    assert [list(parameters["$defs"]) for parameters in found.values()] == [["tool_0"], ["tool_1"]]
    assert [parameters for _, parameters in parameters_of_calls({**schema, "$defs": None})] == [
        {"$ref": "#/$defs/tool_0"},
        {"$ref": "#/$defs/tool_1"},
    ]


def test_a_named_schema_is_pointed_to_by_its_escaped_place() -> None:
    schema = required_tools_schema([named("integer", "#a")])
    assert schema["$defs"]["tool_0"]["properties"]["a"] == {"$ref": "#/$defs/tool_0/$defs/a~1b"}


def test_two_schemas_of_one_id_within_tools_are_refused() -> None:
    one, other = (named(kind, "b", whole="https://example.com/s", part="b") for kind in ("integer", "null"))
    required_tools_schema([one, one])
    with pytest.raises(InvalidRequestError, match=r"tools is \"\$id 'https.*' of two schemas\"; allowed: an"):
        required_tools_schema([one, other])


def test_a_schema_of_a_property_named_as_a_keyword_of_values_is_one() -> None:
    one, other = (
        Tool(
            name=kind, parameters={"properties": {"default": {"$id": "https://example.com/s", "type": kind}}}
        )
        for kind in ("integer", "null")
    )
    with pytest.raises(InvalidRequestError, match=r"\$id 'https.*' of two schemas"):
        required_tools_schema([one, other])


def test_a_schema_without_a_type_is_one_of_an_object() -> None:
    properties = {"properties": {"a": {"type": "string"}}}
    assert named_tool_schema(Tool(name="f", parameters=properties)) == {"type": "object", **properties}


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"not": schema}
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        required_tools_schema([Tool(name="f", parameters=schema)])
