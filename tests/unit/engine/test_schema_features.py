from __future__ import annotations

import json
from typing import Any

import pytest

from baton_core.requests.schema_features import unkept_by_guidance, unkept_keyword, unsupported_part
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
        ({**OBJECT, "$id": "https://example.com/a"}, None),
        ({"type": "array", "items": {**OBJECT, "$id": "b"}}, "'$id'"),
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
        ({"type": "number", "minimum": 1e-7, "maximum": 2e-7}, "a range without a number of 6 decimals"),
        ({"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1e-6}, "a range without"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-6}, None),
        ({"type": "number", "minimum": -3.4e38, "maximum": 1e308}, None),
        ({"type": "number", "minimum": 2**53 + 1, "maximum": 2**53 + 3}, "'minimum' of 9007199254740993"),
        ({"type": "number", "maximum": 10**400}, "'maximum' of 1000"),
        ({"type": "number", "minimum": 2**53, "maximum": 10**22}, None),
        ({"const": 2**64 - 1}, "the integer 18446744073709551615"),
        ({"enum": [{"a": [2**63]}]}, "the integer 9223372036854775808"),
        ({"const": 2**63 - 1}, None),
        ({"type": "number", "minimum": float("nan")}, None),
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
    ("schema", "named"),
    [
        ({"const": 2**53 + 1}, "the integer 9007199254740993"),
        ({"items": {"enum": ["a", {"b": [10**22]}]}}, "the integer 10000000000000000000000"),
        ({"enum": [2**53, 2**63 - 1, 10**18, -1.5, True]}, None),
        ({"const": 123456789.12345679}, "the number 123456789.12345679"),
        ({"enum": [-123456789.12345679]}, "the number -123456789.12345679"),
        ({"enum": [1e22, 1e23, 0.1, -1 / 3, 5e-324, 1.7e308, 1e-7, 0.0]}, None),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, "'minimum' of 9007199254740993"),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 10**18 - 1}, None),
        ({"type": "integer", "minimum": 2**63}, "'minimum' of 9223372036854775808"),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1}, None),
        ({"type": "number", "minimum": -3.4e38, "exclusiveMaximum": 1e308}, None),
        ({"type": "number", "exclusiveMinimum": 5, "maximum": 5.5}, "'exclusiveMinimum' of 5 beside"),
        ({"allOf": [{"exclusiveMaximum": 0}, {"minimum": -0.5}]}, "'exclusiveMaximum' of 0 beside"),
        ({"type": "number", "minimum": 4.5, "exclusiveMaximum": 5}, None),
        ({"properties": {"a": {"exclusiveMinimum": 0}, "b": {"maximum": 0.5}}}, None),
    ],
    ids=str,
)
def test_numbers_that_guidance_would_take_for_others_are_found_and_named(
    schema: Any, named: str | None
) -> None:
    text = json.dumps(schema)
    tag = json.dumps({"structures": [{"begin": "a", "schema": text, "end": "b"}], "triggers": ["a"]})
    for params in (StructuredOutputsParams(json=text), StructuredOutputsParams(structural_tag=tag)):
        found = unkept_by_guidance(params)
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
