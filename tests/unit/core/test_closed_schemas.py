"""Objects of a schema that have only the properties that it names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.closed_schemas import closed_schema
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
