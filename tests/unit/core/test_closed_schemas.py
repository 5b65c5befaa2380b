"""Objects of a schema that have only the properties that it names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.closed_schemas import closed_schema, strict_schema, strict_tag
from baton_core.requests.structured_outputs import StructuredOutputsParams

NAMED = {"type": "object", "properties": {"a": {}}}
CLOSED = {**NAMED, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NAMED, CLOSED),
        ({**NAMED, "additionalProperties": True}, {**NAMED, "additionalProperties": True}),
        (
            {"patternProperties": {"a": NAMED}},
            {"patternProperties": {"a": CLOSED}, "additionalProperties": False},
        ),
        ({"type": "object"}, {"type": "object"}),
        ({"items": NAMED}, {"items": CLOSED}),
        ({"anyOf": [NAMED, True]}, {"anyOf": [CLOSED, True]}),
        ({"$defs": {"properties": NAMED}}, {"$defs": {"properties": CLOSED}}),
        ({"const": NAMED, "enum": [NAMED]}, {"const": NAMED, "enum": [NAMED]}),
        (True, True),
    ],
)
def test_only_schemas_that_name_properties_are_closed(schema: Any, expected: Any) -> None:
    assert closed_schema(schema) == expected


@pytest.mark.parametrize("schema", [NAMED, json.dumps(NAMED)])
def test_a_client_s_schema_is_closed_where_it_asks_for_that(schema: Any) -> None:
    given = {"json": schema, "disable_additional_properties": True}
    assert json.loads(StructuredOutputsParams.from_mapping(given).json or "") == CLOSED
    given["disable_additional_properties"] = False
    assert json.loads(StructuredOutputsParams.from_mapping(given).json or "") == NAMED


def test_a_schema_that_is_no_json_is_left_to_the_checks_of_grammars() -> None:
    params = StructuredOutputsParams.from_mapping({"json": "{", "disable_additional_properties": True})
    assert params.json == "{"


@pytest.mark.parametrize(
    ("option", "value"), [("disable_additional_properties", 1), ("whitespace_pattern", "[ ]?")]
)
def test_a_wrong_option_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=rf"structured_outputs\.{option} is "):
        StructuredOutputsParams.from_mapping({"json": "{}", option: value})


@pytest.mark.parametrize(
    ("schema", "changes"),
    [
        (NAMED, {"additionalProperties": False}),
        ({"prefixItems": [{}], "minItems": 1}, {"items": False}),
        ({"oneOf": [NAMED], "title": "t"}, {"oneOf": [CLOSED]}),
        ({"properties": {"if": NAMED}}, {"properties": {"if": CLOSED}, "additionalProperties": False}),
        ({"allOf": [NAMED], "description": "d"}, {"allOf": [CLOSED]}),
        ({"additionalProperties": NAMED}, {"additionalProperties": CLOSED}),
        ({**NAMED, "required": ["b"]}, {}),
        ({"prefixItems": [{}], "minItems": 2}, {}),
        ({"allOf": [NAMED, NAMED]}, {}),
        ({**NAMED, "anyOf": [NAMED, {}]}, {}),
        ({"$defs": {"d": NAMED}, "properties": {"b": {"$ref": "#/$defs/d", "properties": {}}}}, {}),
        ({"if": NAMED, "then": NAMED}, {}),
        ({"prefixItems": [], "minItems": "a", "properties": {}, "required": [[]]}, {}),
        ({"properties": {}, "required": 5}, {"additionalProperties": False}),
        ({"allOf": 5}, {}),
        (True, None),
    ],
)
def test_a_strict_schema_is_closed_where_one_schema_alone_holds_for_each_value(
    schema: Any, changes: dict[str, Any] | None
) -> None:
    assert strict_schema(schema) == (schema if changes is None else {**schema, **changes})


def test_schemas_of_a_structural_tag_are_closed_in_both_notations() -> None:
    tag = {"format": {"elements": [{"type": "json_schema", "json_schema": NAMED, "properties": {}}]}}
    closed = {"format": {"elements": [{"type": "json_schema", "json_schema": CLOSED, "properties": {}}]}}
    assert strict_tag(tag) == closed
    assert strict_tag({"structures": [{"schema": json.dumps(NAMED)}]}) == {"structures": [{"schema": CLOSED}]}
