from __future__ import annotations

import json
import string
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise, product
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_core.requests.structured_outputs import MAX_GRAMMAR_CHARACTERS, StructuredOutputsParams
from baton_router.structured_outputs.grammar_checks import check_structured_outputs

TAG: Final = {"type": "tag", "begin": "<f>", "content": {"type": "any_text"}, "end": ["</f>", "</g>"]}
GOOD: Final[tuple[dict[str, Any], ...]] = (
    {"json": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$", "maxLength": 3}}}},
    {"json": "true"},
    {"json_object": True},
    {"regex": r"(a|b){2,3}\d\p{L}[^x]"},
    {"choice": ("a", 'b "c"', "é😀")},
    {"grammar": 'root ::= "a" item* # comment\nitem ::= [^a-z\\n]{1,3} | ("b" | "\\u00e9")?'},
    {"grammar": 'start: "a" ITEM*\nITEM: /[a-z]+/'},
    {"structural_tag": {"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}]}},
    {
        "structural_tag": {
            "format": {"type": "sequence", "elements": [TAG, {"type": "regex", "pattern": "a"}]}
        }
    },
    {"structural_tag": {"format": {"type": "triggered_tags", "triggers": ["<"], "tags": [TAG]}}},
    {"structural_tag": {"format": {"type": "grammar", "grammar": 'root ::= "a"'}}},
    {"json": {"type": "object", "properties": {"a": {"type": "string", "format": "password"}}}},
    {"json": {"type": "number", "minimum": -3.4e38, "maximum": 1e308}},
    {"json": {"oneOf": [{"const": 1, "title": "a"}, {"const": 2}]}},
    {"json": {"enum": [-1e30, 0]}},
    {"json": {"$id": "Output Format", "type": "string", "maxLength": 3}},
    {"json": {"$id": "https://a/b%20c", "type": "string", "maxLength": 3}},
    {"json": {"$id": "answer#1", "type": "string", "maxLength": 3}},
    {"json": {"$id": "1:answer", "type": "string", "maxLength": 3}},
    {"json": {"$id": "a:b", "$ref": "a:b#/$defs/c", "$defs": {"c": {"type": "string", "maxLength": 3}}}},
    {"json": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}},
    {"structural_tag": {"format": {"type": "dispatch", "rules": [["a", {"type": "token", "token": "b"}]]}}},
)
WRONG: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"json": "{"}, "JSON text"),
    ({"json": "NaN"}, "NaN is not JSON"),
    ({"json": "[1]"}, "a JSON schema"),
    ({"json": '{"type": "text"}'}, "what llguidance can read (Invalid type: text)"),
    ({"json": {"type": "string", "pattern": "\\p{No}\\p{Nope}"}}, "error: Unicode property not found)"),
    ({"json": '{"$ref": "#/$defs/a"}'}, "does not exist"),
    ({"json": '{"$ref": "http://localhost/schema"}'}, "not present in a registry"),
    ({"json": '{"type": "array", "uniqueItems": true}'}, "uniqueItems"),
    ({"json": '{"x-guidance": {"lenient": true}}'}, "x-guidance"),
    ({"json": '{"const": "\\ud800"}'}, "UTF-8"),
    ({"json": '{"oneOf": [{"type": "string"}, {"const": "a"}]}'}, "oneOf constraints are not supported.)"),
    ({"json": '{"const": -9223372036854775808}'}, "the least integer is -9223372036854774784"),
    ({"json": '{"items":' * 80 + "{}" + "}" * 80}, "at most 64 levels"),
    ({"json": "[" * 60_000}, "JSON"),
    ({"json": {"properties": {f"p{index}": {} for index in range(300)}}}, "at most 256 keys"),
    ({"json": '{"type": "string", "pattern": "(a{1000}){1000}"}'}, "written out"),
    ({"regex": "(a"}, "unclosed group"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": r"(a)\1"}, "backreferences"),
    ({"regex": "(a{1000}){1000}"}, "written out"),
    ({"regex": '"(a{1000}){1000}"'}, "written out"),
    ({"regex": "(" * 100 + ")" * 100}, "at most 64 groups"),
    ({"regex": "a" * 20_000}, "at most 16384 characters"),
    ({"regex": "a\0"}, "U+0000"),
    ({"choice": ("a", "\ud800")}, "UTF-8"),
    ({"choice": tuple(map(str, range(5000)))}, "at most 4096 strings"),
    ({"grammar": 'item ::= "a"'}, "no rule is called 'root'"),
    ({"grammar": 'root ::= "a'}, "unexpected"),
    ({"grammar": "root ::= item"}, "'item' is not defined"),
    ({"grammar": 'root ::= "a"\nroot ::= "b"'}, "defined twice"),
    ({"grammar": 'root ::= ("a"'}, "not closed"),
    ({"grammar": 'root ::= "a" | '}, "alternative is empty"),
    ({"grammar": 'root ::= "a"**'}, "repeats nothing"),
    ({"grammar": 'root ::= "a"{3,2}'}, "no range of counts"),
    ({"grammar": "root ::= [z-a]"}, "runs backwards"),
    ({"grammar": 'root ::= "\\q"'}, "unexpected"),
    ({"grammar": 'root ::= "a" root'}, "never comes to an end"),
    ({"grammar": 'root ::= (("a"{999}){999}){999}'}, "written out"),
    ({"grammar": "start: missing"}, "unknown name"),
    ({"structural_tag": "[]"}, "an object with 'format'"),
    ({"structural_tag": '{"format": {"type": "text"}}'}, "'type' is one of"),
    ({"structural_tag": '{"format": {"type": "tag", "begin": "a", "end": "b"}}'}, "with 'content'"),
    ({"structural_tag": '{"format": {"type": "const_string", "value": 3}}'}, "a string as 'value'"),
    ({"structural_tag": '{"format": {"type": "any_text", "until": "a"}}'}, "keys of a any_text"),
    ({"structural_tag": '{"format": {"type": "regex", "pattern": "("}}'}, "unclosed group"),
    ({"structural_tag": '{"format": {"type": "json_schema", "json_schema": {"not": {}}}}'}, "not"),
    ({"structural_tag": '{"structures": [], "triggers": ["a"]}'}, "at least one object"),
    (
        {"structural_tag": '{"structures": [{"begin": "b", "end": "", "schema": {}}], "triggers": ["a"]}'},
        "starts with one of the triggers",
    ),
)
WITHOUT_TORCH: Final = """
import sys
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.structured_outputs.grammar_checks import check_structured_outputs
before = "llguidance" in sys.modules
for form in {forms!r}:
    check_structured_outputs(StructuredOutputsParams(**form))
print(before, sorted({{"torch", "numpy", "xgrammar", "transformers"}} & sys.modules.keys()))
"""


@pytest.mark.parametrize("form", GOOD, ids=str)
def test_a_form_that_workers_can_compile_passes(form: dict[str, Any]) -> None:
    check_structured_outputs(StructuredOutputsParams(**form))


@pytest.mark.parametrize(("form", "reason"), WRONG, ids=[str(form)[:60] for form, _ in WRONG])
def test_a_wrong_form_is_refused_with_its_name_and_the_reason(form: dict[str, Any], reason: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidRequestError) as error:
        check_structured_outputs(StructuredOutputsParams(**form))
    assert time.process_time() - started < 2
    assert str(error.value).startswith(f"structured_outputs.{next(iter(form))} is ")
    assert reason in str(error.value).split("; allowed: ", 1)[1]


def test_checking_every_form_loads_no_torch_and_llguidance_only_then() -> None:
    code = WITHOUT_TORCH.format(forms=GOOD)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False []"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidConfigError, match="missing package"):
        check_structured_outputs(StructuredOutputsParams(regex="a"))


def chain(name_characters: str) -> str:
    """Return a grammar in which each name stands for the next, as many as fit."""
    names = ["".join(letters) for letters in product(name_characters, repeat=3)][:8000]
    return f"start:{names[0]}\n" + "\n".join(map(":".join, pairwise(names))) + f'\n{names[-1]}:"x"'


@pytest.mark.parametrize(
    "form",
    [
        {"grammar": chain(string.ascii_uppercase)},
        {"grammar": chain(string.ascii_lowercase)},
        {"json": {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(8)]} for i in range(12)]}},
        {"regex": "(?i)" + r"\p{L}é" * 1500},
        {"regex": "[" * 60_000},
        {"regex": '"' * 60_000},
        {"regex": "(a*" * 60 + ")*" * 60},
        {"grammar": "root ::= " + "r " * 30_000},
        {"grammar": "\n".join(f'r{index} ::= "a" r{index + 1}' for index in range(1020)) + "\nroot ::= r0"},
        {"grammar": "root ::= " + "[" * 60_000},
        {"grammar": "root ::= " + '"' * 60_001},
    ],
    ids=lambda form: str(form)[:30],
)
@pytest.mark.slow
def test_the_largest_and_deepest_forms_take_no_more_than_seconds(form: dict[str, Any]) -> None:
    params = StructuredOutputsParams(**form)
    assert params.num_characters <= MAX_GRAMMAR_CHARACTERS
    started = time.process_time()
    with suppress(InvalidRequestError):
        check_structured_outputs(params)
    assert time.process_time() - started < 5


KEYWORDS: Final = st.sampled_from(
    (
        *(
            "type",
            "properties",
            "items",
            "anyOf",
            "allOf",
            "oneOf",
            "$ref",
            "$defs",
            "enum",
            "const",
            "pattern",
        ),
        *("minLength", "maxItems", "minimum", "required", "additionalProperties", "patternProperties", "not"),
        *("format", "prefixItems", "multipleOf", "$id", "minProperties", "a"),
    )
)
LEAVES: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["string", "object", "array", "number", "#", "#/$defs/a", "^a+$", "(", "date", "a"]),
)
SCHEMAS: Final = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=12,
)
PIECES: Final = st.sampled_from(
    (
        *(
            "a",
            "(",
            ")",
            "*",
            "+",
            "?",
            "{2}",
            "{1,300}",
            "|",
            "[a-z]",
            "[",
            "]",
            "\\",
            "\\d",
            "^",
            "$",
            ".",
            "é",
        ),
        *(
            "root ::= ",
            "start: ",
            "\n",
            "x",
            '"a"',
            '"',
            "/a/",
            "%json",
            "{}",
            "~",
            "@x",
            "#",
            "<[1-3]>",
            "(?i)",
        ),
    )
)
TEXTS: Final = st.lists(PIECES, min_size=1, max_size=12).map("".join) | st.text(min_size=1, max_size=30)


def is_refused_or_passes(**form: Any) -> None:
    started = time.process_time()
    with suppress(InvalidRequestError):
        check_structured_outputs(StructuredOutputsParams(**form))
    assert time.process_time() - started < 2


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, st.sampled_from(["json", "structural_tag"]))
@pytest.mark.slow
def test_no_schema_does_anything_but_pass_or_be_refused(schema: Any, name: str) -> None:
    if name == "structural_tag":
        schema = {"format": {"type": "json_schema", "json_schema": schema}}
    is_refused_or_passes(**{name: json.dumps(schema)})


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.sampled_from(["json", "regex", "grammar", "structural_tag", "choice"]))
@pytest.mark.slow
def test_no_text_does_anything_but_pass_or_be_refused(text: str, name: str) -> None:
    is_refused_or_passes(**{name: (text,) if name == "choice" else text})
