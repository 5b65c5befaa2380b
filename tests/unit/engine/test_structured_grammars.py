"""The texts that a grammar allows, judged without the libraries that compiled it."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final

import jsonschema
import numpy as np
import pytest

from baton_core.errors import InvalidRequestError
from baton_engine.structured.compiler import GrammarCompiler
from tests.unit.engine.grammars import BACKENDS, Model, allowed_ids, compiled, mask_of, text_of, walk

pytestmark = pytest.mark.slow

MODEL: Final = Model()
TEXTS: Final = MODEL.vocabulary().texts
NODE: Final = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": -3, "maximum": 40},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}
KEPT_BY_ALL: Final[dict[str, Any]] = {
    "object": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "is_new": {"type": "boolean"}},
        "required": ["name"],
        "additionalProperties": False,
    },
    "a list of objects": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "enum": {"enum": ["a", 'with "quotes"', 1.5, None, [1], {"b": True}]},
    "typed enum": {"type": "string", "enum": ["red", "green"]},
    "const": {"const": {"a": [1, 2]}},
    "array": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    "bounded number": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2},
    "several types": {"type": ["boolean", "null"]},
    "named": {"$id": "Output Format", "$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "a property called not": {
        "type": "object",
        "properties": {"not": {"type": "null"}, "pattern": {"type": "boolean"}},
        "required": ["not", "pattern"],
        "additionalProperties": False,
    },
}
KEPT_BY_GUIDANCE: Final[dict[str, Any]] = {
    "lengths": {"type": "string", "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": '^["\\\\x]{3}$'},
    "format": {"type": "string", "format": "date"},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 100},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^a[0-9]$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "any names": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "null"},
    },
    "number of properties": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
        "additionalProperties": True,
    },
    "one of": {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
}
REGEXES: Final = (
    r"(yes|no)!?",
    r"[0-9]{3}-[a-f]{2,4}",
    r"a/b\/c\.d",
    r"^\d\d:\w+$",
    r"[^\x00-\x1f]{1,6}",
    r'("[^"\\]{0,4}"|\s)',
    "(é|😀|naïve){2}",
    r".{1,5}",
)
CHOICES: Final = ("yes", "yesterday", 'a "b"\n\\c', "é😀", "</s>")
EBNF: Final = 'root ::= item ("," item)*\nitem ::= [a-c]{1,3} | "\\"" digit+ "\\"" # quoted\ndigit ::= [0-9]'
LARK: Final = 'start: item ("," item)*\nitem: /[a-c]{1,3}/ | "\\"" DIGIT+ "\\""\nDIGIT: /[0-9]/'
OF_GRAMMARS: Final = r'([a-c]{1,3}|"[0-9]+")(,([a-c]{1,3}|"[0-9]+"))*'


@cache
def compiler(backend: str) -> GrammarCompiler:
    return MODEL.compiler(backend)


def outputs(backend: str, num: int = 4, **form: Any) -> list[str]:
    grammar = compiled(compiler(backend), **form)
    return [text_of(walk(grammar, MODEL, TEXTS, seed), TEXTS) for seed in range(num)]


@pytest.mark.parametrize("schema", KEPT_BY_ALL.values(), ids=KEPT_BY_ALL)
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_are_valid_under_their_schema(backend: str, schema: Any) -> None:
    for text in outputs(backend, json=json.dumps(schema)):
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("schema", KEPT_BY_GUIDANCE.values(), ids=KEPT_BY_GUIDANCE)
def test_what_xgrammar_does_not_keep_to_goes_to_guidance(schema: Any) -> None:
    for text in outputs("auto", json=json.dumps(schema)):
        jsonschema.validate(json.loads(text), schema)
    with pytest.raises(InvalidRequestError, match="what xgrammar keeps to"):
        outputs("xgrammar", json=json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"uniqueItems": True, "type": "array"},
        {"not": {"type": "string"}},
        {"propertyNames": {"pattern": "^a"}, "type": "object"},
        {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    ],
    ids=str,
)
def test_a_keyword_that_no_library_keeps_to_is_refused_and_named(schema: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"structured_outputs\.json") as error:
        outputs("auto", json=json.dumps(schema))
    assert any(word in str(error.value).split("allowed")[1] for word in schema)


@pytest.mark.parametrize("backend", ["auto", "guidance"])
def test_any_object_is_an_object(backend: str) -> None:
    for text in outputs(backend, json_object=True):
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize("schema", ["object", "a list of objects", "tuple", "array"])
def test_compact_json_has_no_whitespace_between_its_parts(backend: str, schema: str) -> None:
    for text in outputs(backend, json=json.dumps(KEPT_BY_ALL[schema]), disable_any_whitespace=True):
        jsonschema.validate(json.loads(text), KEPT_BY_ALL[schema])
        assert not re.search(r"\s", without_strings(text))


def test_compact_json_of_any_kind_has_no_whitespace_either() -> None:
    schema = json.dumps({"type": "array", "minItems": 2})
    for form in ({"json_object": True}, {"json": schema}):
        for text in outputs("auto", **form, disable_any_whitespace=True):
            json.loads(text)
            assert not re.search(r"\s", without_strings(text))
        with pytest.raises(InvalidRequestError, match="what xgrammar keeps to"):
            outputs("xgrammar", **form, disable_any_whitespace=True)


@pytest.mark.parametrize("regex", REGEXES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_match_their_expression(backend: str, regex: str) -> None:
    for text in outputs(backend, regex=regex):
        assert re.fullmatch(regex, text), text


def test_an_expression_that_xgrammar_cannot_read_goes_to_guidance() -> None:
    for text in outputs("auto", regex=r"(?i:ab)\p{Lu}"):
        assert re.fullmatch(r"(?i:ab).", text)
        assert text[-1].isupper()


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_are_among_the_choices_and_each_can_be_one(backend: str) -> None:
    assert set(outputs(backend, num=60, choice=CHOICES)) == set(CHOICES)


@pytest.mark.parametrize("grammar", [EBNF, LARK], ids=["ebnf", "lark"])
@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_outputs_are_of_their_grammar(backend: str, grammar: str) -> None:
    for text in outputs(backend, grammar=grammar):
        assert re.fullmatch(OF_GRAMMARS, text), text


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_of_both_libraries_agree_along_the_way(backend: str) -> None:
    grammars = (
        *(
            {"json": json.dumps(KEPT_BY_ALL[name]), "disable_any_whitespace": True}
            for name in ("a list of objects",)
        ),
        *({"regex": regex} for regex in REGEXES),
        {"choice": CHOICES},
        {"grammar": EBNF},
    )
    other = BACKENDS[1 - BACKENDS.index(backend)]
    for form in grammars:
        grammar, expected = (compiled(compiler(name), **form) for name in (backend, other))
        state, twin = grammar.new_state(), expected.new_state()
        for token_id in walk(grammar, MODEL, TEXTS, seed=3):
            ids, twin_ids = (allowed_ids(each, MODEL.vocab_size) for each in (state, twin))
            assert ids == twin_ids, [TEXTS[each] for each in set(ids) ^ set(twin_ids)][:20]
            assert state.accept(token_id)
            assert twin.accept(token_id)
        assert state.is_terminated
        assert twin.is_terminated


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_rebuilt_from_tokens_is_the_state_that_took_them(backend: str) -> None:
    grammar = compiled(compiler(backend), json=json.dumps(KEPT_BY_ALL["object"]))
    tokens = walk(grammar, MODEL, TEXTS, seed=1)
    state = grammar.new_state()
    for num_tokens in range(len(tokens)):
        rebuilt = grammar.new_state()
        assert all(rebuilt.accept(token_id) for token_id in tokens[:num_tokens])
        assert np.array_equal(mask_of(rebuilt, MODEL.vocab_size), mask_of(state, MODEL.vocab_size))
        assert rebuilt.is_terminated == state.is_terminated == False  # noqa: E712
        assert state.accept(tokens[num_tokens])
    assert state.is_terminated


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_of_one_form_do_not_touch_each_other(backend: str) -> None:
    grammar = compiled(compiler(backend), choice=CHOICES)
    walks = [walk(grammar, MODEL, TEXTS, seed) for seed in range(4)]
    states = [grammar.new_state() for _ in walks]
    for step in range(max(map(len, walks))):
        for state, tokens in zip(states, walks, strict=True):
            assert step >= len(tokens) or state.accept(tokens[step])
    assert all(state.is_terminated for state in states)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_that_does_not_fit_changes_nothing(backend: str) -> None:
    grammar = compiled(compiler(backend), regex="[0-9]{2}")
    state = grammar.new_state()
    before = mask_of(state, MODEL.vocab_size)
    refused = set(range(MODEL.vocab_size)).difference(allowed_ids(state, MODEL.vocab_size))
    assert not any(state.accept(token_id) for token_id in sorted(refused))
    assert np.array_equal(mask_of(state, MODEL.vocab_size), before)
    assert not state.is_terminated


@pytest.mark.parametrize("backend", BACKENDS)
def test_after_its_end_only_end_tokens_fit(backend: str) -> None:
    state = compiled(compiler(backend), regex="1?").new_state()
    assert state.accept(MODEL.eos_token_ids[1])
    assert state.is_terminated
    assert allowed_ids(state, MODEL.vocab_size) == list(MODEL.eos_token_ids)
    assert state.accept(MODEL.eos_token_ids[0])
    assert not state.accept(TEXTS.index(b"1"))


def test_a_form_that_cannot_go_on_allows_no_token_and_no_end() -> None:
    state = compiled(compiler("xgrammar"), grammar='root ::= "1" endless\nendless ::= endless').new_state()
    assert state.accept(TEXTS.index(b"1"))
    assert allowed_ids(state, MODEL.vocab_size) == []
    assert not state.accept(MODEL.eos_token_ids[0])
    assert not state.is_terminated


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_tokens_are_no_text(backend: str) -> None:
    assert not {0, 1, 2, 3} & set(allowed_ids(compiled(compiler(backend), regex=".{9}").new_state(), 4096))


def without_strings(text: str) -> str:
    return re.sub(r'"(?:\\.|[^"\\])*"', "", text)
