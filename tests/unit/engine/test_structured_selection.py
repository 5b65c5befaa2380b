"""The library that compiles a form is chosen where the request is accepted, and by no worker anew."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_backends import with_backend
from baton_core.requests.structured_outputs import StructuredOutputsParams
from tests.unit.engine.expressions import accepts, backends


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"regex": "a+"}, "xgrammar"),
        ({"regex": r"\p{L}"}, "guidance"),
        ({"json": {"type": "integer"}}, "xgrammar"),
        ({"json": {"type": "string", "pattern": "a"}}, "guidance"),
        ({"json": {"type": "number", "minimum": 1e-7, "maximum": 2e-7}}, "guidance"),
        ({"grammar": "start: /a/"}, "guidance"),
        ({"grammar": 'root ::= "a"'}, "xgrammar"),
        ({"choice": ("a", "b")}, "xgrammar"),
        ({"json_object": True, "disable_any_whitespace": True}, "guidance"),
    ],
)
def test_auto_takes_xgrammar_for_what_it_keeps_to_in_full(form: dict[str, Any], expected: str) -> None:
    chosen = with_backend(StructuredOutputsParams(**form), "auto")
    assert chosen.backend == expected
    for setting in ("xgrammar", "guidance"):
        of_notation = expected if "grammar" in form else setting
        assert with_backend(StructuredOutputsParams(**form), setting).backend == of_notation


@pytest.mark.parametrize("setting", ["auto", "xgrammar", "guidance"])
@pytest.mark.parametrize("chosen", ["xgrammar", "guidance"])
def test_a_worker_compiles_with_what_was_chosen_whatever_its_own_setting(setting: str, chosen: str) -> None:
    grammar = backends(setting).compile(StructuredOutputsParams(regex="a", backend=chosen))
    assert type(grammar).__name__ == f"{chosen.title()}Grammar"


def test_a_client_names_no_library() -> None:
    with pytest.raises(InvalidRequestError, match="backend"):
        StructuredOutputsParams.from_mapping({"regex": "a", "backend": "xgrammar"})
    with pytest.raises(InvalidRequestError, match=r"structured_outputs\.backend is 'outlines'; allowed"):
        StructuredOutputsParams(regex="a", backend="outlines")


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (r"root ::= [\^0-9]{2}", "^1", "ab"),
        (r'root ::= "\x41\u00e9\U0001F600"', "Aé😀", "x41"),
        ("root ::= [+--]", ",", "a"),
        ('root ::= a\n  | b\na ::= "x"\nb ::= "y"', "y", "z"),
        (r"start: /[\^0-9]{2}/", "^1", "ab"),
        ("start: /[^]a]/", "b", "]"),
    ],
)
@pytest.mark.parametrize("setting", ["auto", "xgrammar", "guidance"])
def test_a_grammar_means_the_same_under_every_setting(
    setting: str, grammar: str, good: str, bad: str
) -> None:
    compiled = backends(setting).compile(StructuredOutputsParams(grammar=grammar))
    assert accepts(compiled, good)
    assert not accepts(compiled, bad)


NAMED = {"a": {"type": "string"}}
MORE = '{"a":"x","b":1}'
ONE = '{"a":"x"}'


@pytest.mark.parametrize("unknown_to_xgrammar", [{}, {"d": {"type": "string", "minLength": 1}}])
@pytest.mark.parametrize(
    ("schema", "open_text", "closed_text"),
    [
        ({"type": "object", "properties": NAMED}, MORE, ONE),
        ({"anyOf": [{"type": "object", "properties": NAMED}, {"type": "null"}]}, MORE, ONE),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, "[1,2]", "[1]"),
    ],
)
def test_auto_closes_schemas_alike_whichever_library_it_takes(
    schema: dict[str, Any], open_text: str, closed_text: str, unknown_to_xgrammar: dict[str, Any]
) -> None:
    whole = {"type": "object", "properties": {"v": schema, **unknown_to_xgrammar}}
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": whole}}
    for form in ({"json": whole}, {"structural_tag": tag}):
        params = StructuredOutputsParams(**form)  # type: ignore[arg-type]
        assert with_backend(params, "auto").backend == ("guidance" if unknown_to_xgrammar else "xgrammar")
        closed = backends("auto").compile(params)
        assert accepts(closed, f'{{"v": {closed_text}}}'.replace(",", ", ").replace(":", ": "))
        assert not accepts(closed, f'{{"v": {open_text}}}'.replace(",", ", ").replace(":", ": "))
        is_open = accepts(backends("guidance").compile(params), f'{{"v":{open_text}}}')
        assert is_open, "as vLLM's, the library that is named leaves them open"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (
            {"allOf": [{"type": "object", "properties": NAMED}, {"properties": {"b": {"type": "integer"}}}]},
            MORE,
        ),
        ({"type": "object", "properties": NAMED, "required": ["b"]}, MORE),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 2}, "[1, 2]"),
        ({"type": "array", "minItems": 1}, "[1, 2]"),
        ({"type": ["array", "object"], "properties": NAMED}, "[1, 2]"),
    ],
)
def test_auto_leaves_open_what_could_not_be_met_otherwise(schema: dict[str, Any], text: str) -> None:
    assert accepts(backends("auto").compile(StructuredOutputsParams(json=schema)), text)  # type: ignore[arg-type]
