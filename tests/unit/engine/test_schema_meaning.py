"""Outputs that a schema's grammar allows are valid, as the package `jsonschema` judges."""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import product
from typing import Any, Final

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.selection import Backends
from tests.unit.engine.expressions import accepts, backends, random_output

NUMBERS: Final = st.sampled_from((-40, -3, -1, 0, 1, 2, 7, 40, 1000))
FRACTIONS: Final = st.sampled_from((-1.5, -0.25, 0, 0.001, 0.5, 1, 2.75, 10))
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
SIZES: Final = st.integers(0, 3)
VALUES: Final = st.sampled_from((None, True, 0, -1.5, "", 'a"\\', "é😀", [1], {"b": None}))
NAMES: Final = st.sampled_from(("a", "b", "x y", "é", "type"))
PATTERNS: Final = st.sampled_from(
    ("^a+$", "b", r"^\d{2}", r"[^\n]x$", "^(a|b)$|^c", r'^["\\]{2}$', r"^\s?$", r"\.$", "")
)


def keywords(**values: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a schema with up to three of these keywords."""
    names = st.sets(st.sampled_from(sorted(values)), max_size=3)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({name: values[name] for name in sorted(chosen)})
    )


def typed(kind: str, **values: Any) -> st.SearchStrategy[dict[str, Any]]:
    return keywords(**values).map(lambda schema: {"type": kind, **schema})


LEAVES: Final = st.one_of(
    typed("integer", **dict.fromkeys(BOUNDS, NUMBERS), multipleOf=st.sampled_from((1, 2, 7))),
    typed("number", **dict.fromkeys(BOUNDS, FRACTIONS)),
    typed("string", minLength=SIZES, maxLength=SIZES, pattern=PATTERNS),
    st.sampled_from(({"type": "boolean"}, {"type": "null"}, {"type": ["null", "integer"], "minimum": 3})),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/leaf"}),
)


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(NAMES, inner, max_size=3)
    return st.one_of(
        typed(
            "object",
            properties=properties,
            required=st.lists(NAMES, max_size=2, unique=True),
            additionalProperties=st.booleans() | inner,
            patternProperties=st.dictionaries(st.sampled_from(("^a", "b$")), inner, max_size=1),
            minProperties=SIZES,
            maxProperties=SIZES,
        ),
        typed(
            "array",
            items=st.booleans() | inner,
            prefixItems=st.lists(inner, min_size=1, max_size=2),
            minItems=SIZES,
            maxItems=SIZES,
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        st.lists(inner, min_size=1, max_size=2).map(lambda options: {"allOf": options}),
        st.lists(inner, min_size=1, max_size=2).map(lambda options: {"oneOf": options}),
    )


SCHEMAS: Final = st.recursive(LEAVES, composed, max_leaves=5)
DEFS: Final = {"leaf": {"type": "object", "properties": {"n": {"$ref": "#/$defs/leaf"}}}}


@cache
def library(name: str) -> Backends:
    return backends(name)


@pytest.mark.slow
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(
    schema=SCHEMAS,
    backend=st.sampled_from(("auto", "xgrammar", "guidance")),
    is_compact=st.booleans(),
    seed=st.integers(0, 999),
)
def test_every_output_is_valid_or_the_schema_is_refused(
    schema: dict[str, Any], backend: str, is_compact: bool, seed: int
) -> None:
    schema = {**schema, "$defs": DEFS}
    form = StructuredOutputsParams(json=json.dumps(schema), disable_any_whitespace=is_compact)
    try:
        grammar = library(backend).compile(form)
    except InvalidRequestError:
        return
    for one in range(3):
        if (written := random_output(grammar, random.Random(seed + one))) is not None:
            value = json.loads(written)
            jsonschema.Draft202012Validator(schema).validate(value)


TEXTS: Final = (
    "0",
    "-0",
    "0.0",
    "0.001",
    "0.0010",
    "0.0005",
    "0.5",
    "0.50",
    "-0.25",
    "-0.2",
    "1",
    "1.0",
    "10",
    "9.9",
)


@pytest.mark.parametrize("backend", ["auto", "guidance"])
@pytest.mark.parametrize("low", [None, "minimum", "exclusiveMinimum"])
@pytest.mark.parametrize("high", [None, "maximum", "exclusiveMaximum"])
@pytest.mark.slow
def test_numbers_are_within_their_bounds(backend: str, low: str | None, high: str | None) -> None:
    for least, most in product((-0.25, 0, 0.001, 1), (0, 0.001, 0.5, 10)):
        bounds = {name: value for name, value in ((low, least), (high, most)) if name is not None}
        schema = {"type": "number", **bounds}
        try:
            grammar = library(backend).compile(StructuredOutputsParams(json=json.dumps(schema)))
        except InvalidRequestError:
            continue
        valid = jsonschema.Draft202012Validator(schema)
        for text in TEXTS:
            assert valid.is_valid(json.loads(text)) or not accepts(grammar, text), (schema, text)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "number", "minimum": 1 / 3, "maximum": 1 / 3}, str(1 / 3), "0.333333"),
        ({"type": "number", "minimum": 1e-7, "maximum": 2e-7}, "0.00000015", "0.0000003"),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "-9007199254740993", "1e3"),
        ({"const": 1234567890123456789}, "1234567890123456789", "1234567890123456768"),
        ({"const": 123456789.12345679}, "123456789.12345679", "123456789.1234568"),
        (
            {"type": "number", "minimum": 2**53 + 1, "maximum": 2**53 + 3},
            "9007199254740994",
            "9007199254740992",
        ),
        (
            {"allOf": [{"type": "integer", "maximum": 10**18 - 1}]},
            "999999999999999000",
            "1000000000000000000",
        ),
        (
            {"allOf": [{"type": "integer", "exclusiveMaximum": 2**53 + 4}]},
            "9007199254740992",
            "9007199254740996",
        ),
    ],
)
def test_numbers_of_many_digits_are_written_in_full(schema: dict[str, Any], good: str, bad: str) -> None:
    grammar = library("auto").compile(StructuredOutputsParams(json=json.dumps(schema)))
    assert accepts(grammar, good)
    assert not accepts(grammar, bad)


@pytest.mark.parametrize("backend", ["auto", "guidance"])
def test_counts_may_be_written_as_floats(backend: str) -> None:
    for schema, good, bad in (
        ({"type": "array", "items": {"const": 1}, "minItems": 2.0, "maxItems": 2.0}, "[1, 1]", "[1]"),
        ({"type": "string", "minLength": 1.0, "maxLength": 2.0}, '"ab"', '""'),
    ):
        grammar = library(backend).compile(StructuredOutputsParams(json=json.dumps(schema)))
        assert accepts(grammar, good)
        assert not accepts(grammar, bad)


@pytest.mark.parametrize("backend", ["auto", "guidance"])
def test_formats_that_no_library_knows_allow_every_string(backend: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "path"}}, "required": ["a"]}
    grammar = library(backend).compile(StructuredOutputsParams(json=json.dumps(schema)))
    assert accepts(grammar, '{"a": "x y"}')
    dates = {**schema, "properties": {"a": {"type": "string", "format": "date"}}}
    grammar = library(backend).compile(StructuredOutputsParams(json=json.dumps(dates)))
    assert accepts(grammar, '{"a": "2026-01-31"}')
    assert not accepts(grammar, '{"a": "x y"}')
