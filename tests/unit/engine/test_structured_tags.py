from __future__ import annotations

from functools import cache
from typing import Any, Final

import pytest

from baton_core.errors import InvalidRequestError
from baton_engine.structured.compiler import GrammarCompiler
from tests.unit.engine.grammars import Model, compiled

MODEL: Final = Model()
VOCABULARY: Final = MODEL.vocabulary()
SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LENGTHS: Final = {"type": "string", "maxLength": 2}
"""xgrammar does not keep to it."""
OLDER: Final = {
    "triggers": ["<call"],
    "structures": [{"begin": "<call>", "schema": SCHEMA, "end": "</call>"}],
}
THOUGHT: Final = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}


def today(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": part}


def schema_part(schema: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema, **options}


CASES: Final[tuple[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]], ...]] = (
    (
        OLDER,
        ("", "free text", 'a <call>{"n":1}</call> b <call>{"n": -2}</call>'),
        ("<call>no", '<call>{"n":"x"}</call>', '<call>{"n":1}'),
    ),
    (
        today({"type": "sequence", "elements": [THOUGHT, schema_part(SCHEMA)]}),
        ('<t>hm < ok</t>{"n":1}', '<t></t>{ "n": 1 }'),
        ('{"n":1}', "<t>hm</t>", '<t>hm</t>{"n":1}!'),
    ),
    (
        today({"type": "or", "elements": [{"type": "const_string", "value": "no"}, schema_part(LENGTHS)]}),
        ("no", '"ab"'),
        ('"abc"', "yes"),
    ),
    (today({"type": "plus", "content": {"type": "regex", "pattern": "[ab]/"}}), ("a/", "a/b/"), ("", "a")),
)


@cache
def compiler(backend: str) -> GrammarCompiler:
    return MODEL.compiler(backend)


def accepts(backend: str, tag: dict[str, Any], text: str, **options: Any) -> bool:
    """Say whether a text, token by token, is of the form and may end."""
    state = compiled(compiler(backend), structural_tag=tag, **options).new_state()
    ids = VOCABULARY.tokenizer.encode(text, add_special_tokens=False).ids
    return all(state.accept(token_id) for token_id in (*ids, MODEL.eos_token_ids[0]))


@pytest.mark.parametrize(("tag", "good", "bad"), CASES)
@pytest.mark.parametrize("backend", ["auto", "guidance"])
@pytest.mark.slow
def test_marked_parts_have_their_forms(
    backend: str, tag: dict[str, Any], good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    assert [text for text in good if not accepts(backend, tag, text)] == []
    assert [text for text in bad if accepts(backend, tag, text)] == []


@pytest.mark.slow
def test_a_schema_within_a_tag_is_kept_to_by_the_library_or_refused() -> None:
    with pytest.raises(InvalidRequestError, match="maxLength"):
        accepts("xgrammar", today(schema_part(LENGTHS)), "")


@pytest.mark.parametrize("backend", ["auto", "guidance"])
def test_tags_can_demand_compact_json(backend: str) -> None:
    for tag, options in (
        (today(schema_part(SCHEMA, max_whitespace_cnt=0)), {}),
        (today(schema_part(SCHEMA)), {"disable_any_whitespace": True}),
    ):
        assert accepts(backend, tag, '{"n":1}', **options)
        assert not accepts(backend, tag, '{"n": 1}', **options)


@pytest.mark.parametrize("backend", ["auto", "guidance"])
def test_a_special_token_may_mark_a_part(backend: str) -> None:
    tag = today({**THOUGHT, "begin": "<|im_start|>", "end": "<|pad|>"})
    assert VOCABULARY.tokenizer.encode("<|im_start|>").ids == [1]
    assert accepts(backend, tag, "<|im_start|>hm<|pad|>")
    assert not accepts(backend, tag, "<|im_start|>hm")


def test_guidance_names_the_part_that_it_has_no_words_for() -> None:
    tag = today({"type": "sequence", "elements": [{"type": "token", "token": 5}]})
    with pytest.raises(InvalidRequestError, match="'token' is not"):
        accepts("guidance", tag, "")
    for limit in ({"max_chars": 3}, {"max_tokens": 3}, {"excludes": ["a"]}):
        with pytest.raises(InvalidRequestError, match="'any_text' is not"):
            accepts("guidance", today({**THOUGHT, "content": {"type": "any_text", **limit}}), "")
    with pytest.raises(InvalidRequestError, match=r"is '{.*; allowed: what llguidance has words for"):
        accepts("guidance", today(schema_part(SCHEMA, max_whitespace_cnt=1)), "")
    assert compiled(compiler("auto"), structural_tag=tag).new_state().accept(5)
