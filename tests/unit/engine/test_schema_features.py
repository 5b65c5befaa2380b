from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.requests.schema_features import unkept_keyword, unsupported_part
from baton_core.requests.structured_outputs import StructuredOutputsParams

OBJECT = {"type": "object", "properties": {"a": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (OBJECT, None),
        ({**OBJECT, "title": "t", "description": "d", "x-mine": 1, "default": {"not": 1}}, None),
        ({**OBJECT, "properties": {"pattern": {"const": {"not": 1}}}}, None),
        ({"type": "string", "enum": ["a"]}, None),
        ({"type": "number", "enum": [1, 1.5]}, None),
        ({"type": "object", "anyOf": [OBJECT, OBJECT]}, None),
        ({"type": ["integer", "null"], "minimum": 3}, None),
        (True, None),
        ({"type": "string", "pattern": "a"}, "pattern"),
        ({"type": "array", "items": {"anyOf": [{"type": "string", "maxLength": 3}]}}, "maxLength"),
        ({"$defs": {"a": {"uniqueItems": True}}}, "uniqueItems"),
        ({"type": "object", "additionalProperties": {"oneOf": []}}, "oneOf"),
        ({"minimum": 3}, "without 'type'"),
        ({"type": "integer", "enum": ["a"]}, "beside 'enum'"),
        ({"type": "integer", "anyOf": [{"type": "string"}]}, "beside 'anyOf'"),
        ({"$ref": "#/$defs/a", "minimum": 3}, "beside other keywords"),
        ({"$ref": "#/$defs/a", "type": "object"}, "beside '$ref'"),
        ({"type": "string", "minimum": 3}, "beside 'type'"),
        ({**OBJECT, "required": ["b"]}, "'required'"),
        ({"type": "array", "items": [{}]}, "a list"),
        ({"type": "array", "description": "d"}, None),
        ({"type": "array", "minItems": 1}, "a list of any items"),
        ({"type": "array", "maxItems": 3}, "a list of any items"),
        ({**OBJECT, "type": ["object", "array"]}, "a list of any items"),
        ({"$ref": "http://example.com/schema"}, "'$ref'"),
        ({"$ref": "#/$defs/a~1b"}, "'$ref'"),
        ({"$ref": "#/anyOf/0"}, "'$ref'"),
        ({"$ref": "#/prefixItems/1/items"}, "'$ref'"),
        ({"$ref": "#/$defs/a.b-c"}, None),
        ({"$ref": "#/$defs/2d"}, None),
        ({"anyOf": []}, "an empty 'anyOf'"),
        ({"type": []}, "an empty 'type'"),
        ({"type": "object", "properties": {"a": False}}, "the schema false"),
        ({"type": "integer", "minimum": 1.5}, "for integers"),
        ({"type": "integer", "maximum": 10**20}, "for integers"),
        ({"type": "array", "prefixItems": [{}, {}], "maxItems": 1}, "'maxItems'"),
        ({"type": "array", "prefixItems": [{}, {}], "minItems": 3}, "'minItems'"),
        ({"type": "array", "prefixItems": [{}, {}], "minItems": 3, "items": {}}, None),
    ],
    ids=str,
)
def test_what_xgrammar_would_ignore_is_found_and_named(schema: Any, named: str | None) -> None:
    found = unkept_keyword(schema, is_compact=False)
    assert found is None if named is None else named in str(found)


@pytest.mark.parametrize(
    ("schema", "is_open"),
    [
        (OBJECT, False),
        ({"type": "array", "items": {"type": "integer"}}, False),
        ({"enum": ["a", 1]}, False),
        ({}, True),
        ({"type": "object"}, True),
        ({"type": "array"}, True),
        ({"const": [1, 2]}, True),
        ({"type": "object", "properties": {"a": True}}, True),
    ],
    ids=str,
)
def test_places_for_any_value_are_found_where_json_has_to_be_compact(schema: Any, is_open: bool) -> None:
    assert (unkept_keyword(schema, is_compact=True) is not None) == is_open
    assert unkept_keyword(schema, is_compact=False) is None


def test_schemas_within_structural_tags_count_too() -> None:
    wrong = {"type": "string", "format": "date"}
    for tag in (
        {"structures": [{"begin": "a", "schema": json.dumps(wrong), "end": "b"}], "triggers": ["a"]},
        {"format": {"type": "or", "elements": [{"type": "json_schema", "json_schema": wrong}]}},
    ):
        assert unsupported_part(StructuredOutputsParams(structural_tag=tag)) == "'format'"  # type: ignore[arg-type]


def test_parts_of_structural_tags_that_xgrammar_does_not_read_alike_are_found() -> None:
    for part, named in (
        ({"type": "regex", "pattern": r"\p{L}"}, "Unicode property"),
        ({"type": "regex", "pattern": "a"}, None),
        ({"type": "grammar", "grammar": "start: /a/"}, "Lark"),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, None),
        ({"type": "json_schema", "json_schema": OBJECT, "max_whitespace_cnt": 0}, "max_whitespace_cnt"),
    ):
        tag = {"format": {"type": "optional", "content": part}}
        found = unsupported_part(StructuredOutputsParams(structural_tag=tag))  # type: ignore[arg-type]
        assert found is None if named is None else named in str(found)
