"""An expression means the same to every library, and that is what Python's `re` says it means."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from baton_core.errors import InvalidRequestError
from baton_core.requests.regex_syntax import RegexError, parse_regex
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.interface import Grammar
from baton_engine.structured.selection import Backends
from tests.unit.engine.expressions import EXPRESSIONS, accepts, backends, judge, random_output
from tests.unit.engine.grammars import BACKENDS

pytestmark = pytest.mark.slow

MAX_CHARACTERS: Final = 40
"""Length of a text that is judged: Python's matcher backtracks."""
FOUND: Final = (
    (r"[\^0-9]{6}", "012^45", "learno"),
    (r"(x|[\^+*/-])[0-9]", "^1", "G9"),
    (r"[\p{L}]{5}", "aéßжz", "p{L}}"),
    (r"[^\p{L}\d]", "!", "1"),
    (r"\Afoo\z", "foo", "Afooz"),
    (r"\Afoo\Z", "foo", "AfooZ"),
    (r"[^]a]{3}", "bcd", "b]]"),
    (r"[]a]{3}", "]a]", "bbb"),
    (r"a\<b\>", "a<b>", "ab"),
    (r"\x{1F600}\u{e9}\uD83D\uDE00", "😀é😀", "x"),
    (r"(?<name>a)+", "aa", "<name>a"),
    (r"[\b]", "\b", "b"),
    (r"(^a|^b)c$", "bc", "^ac"),
)


@cache
def library(name: str) -> Backends:
    return backends(name)


def compiled(name: str, pattern: str) -> Grammar:
    return library(name).compile(StructuredOutputsParams(regex=pattern))


@pytest.mark.parametrize(("pattern", "good", "bad"), FOUND)
@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_what_libraries_read_differently_has_one_meaning(
    backend: str, pattern: str, good: str, bad: str
) -> None:
    if backend == "xgrammar" and r"\p" in pattern:
        pytest.skip("xgrammar has no Unicode properties; it refuses them by name")
    grammar = compiled(backend, pattern)
    assert accepts(grammar, good)
    assert not accepts(grammar, bad)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(pattern=EXPRESSIONS, flags=st.sampled_from(("", "(?i)", "(?s)")), data=st.data())
def test_libraries_and_pythons_matcher_agree_about_every_text(
    pattern: str, flags: str, data: st.DataObject
) -> None:
    pattern = flags + pattern
    assume(pattern)
    expected = judge(pattern)
    try:
        parse_regex(pattern)
    except RegexError:
        return
    assert expected is not None, "Python refuses what is read here"
    texts = {data.draw(st.text(st.sampled_from("ab0Aé \n]^-\\"), max_size=4))}
    with_match = st.from_regex(expected, fullmatch=True, alphabet=st.characters(codec="utf-8"))
    texts |= set(data.draw(st.lists(with_match, max_size=3)))
    for backend in BACKENDS:
        grammar = compiled(backend, pattern)
        written = random_output(grammar, random.Random(data.draw(st.integers(0, 99))))
        texts |= {written.decode()} if written is not None else set()
    for backend in BACKENDS:
        for text in texts:
            if len(text) <= MAX_CHARACTERS and "\0" not in text:
                is_expected = expected.fullmatch(text) is not None
                assert accepts(compiled(backend, pattern), text) == is_expected, (backend, text)


SEARCHED: Final = (
    ("^a|b$", ("ax", "xb"), ("xa", "bx", "b\n")),
    (r"a\$", ("xa$x",), ("a", "xa")),
    (r"(^a|b)c$", ("ac", "xbc"), ("xac", "bcx")),
    (r"\d", ("a1",), ("\u0661",)),
    (r"^[^]a]$", ("b",), ("]", "a")),
    ("^ab(-c|)", ("ab", "abX", "ab-c"), ("a",)),
    ("a(|b)", ("xax", "ab"), ("b",)),
    (r"^[^\x00-\x1f\p{L}]$", (" ",), ("\0", "\n", "a")),
    (r"^[^\\]{2}$", ('a"', "\x01\n"), ("a\\", "\\\\")),
    (r"^\w{2}\Z", ("ab",), ("é!", "ab\n")),
    ("", ("", "x"), ()),
)


@pytest.mark.parametrize(("pattern", "good", "bad"), SEARCHED)
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_schemas_pattern_is_found_anywhere_in_a_string_unless_it_is_anchored(
    keyword: str, pattern: str, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    schema: dict[str, Any] = {"type": "string", "pattern": pattern}
    written: Callable[[str], str] = lambda text: json.dumps(text, ensure_ascii=False)  # noqa: E731
    if keyword == "patternProperties":
        null = {"type": "null"}
        schema = {"type": "object", "patternProperties": {pattern: null}, "additionalProperties": False}
        written = lambda text: json.dumps({text: None}, ensure_ascii=False)  # noqa: E731
    grammar = library("auto").compile(StructuredOutputsParams(json=json.dumps(schema)))
    assert [text for text in good if not accepts(grammar, written(text))] == []
    assert [text for text in bad if accepts(grammar, written(text))] == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(pattern=EXPRESSIONS, texts=st.lists(st.text(st.sampled_from("ab0Aé ]^-\\"), max_size=4), min_size=4))
def test_a_schemas_pattern_has_the_meaning_of_an_expression(pattern: str, texts: list[str]) -> None:
    expected = judge(pattern)
    try:
        grammar = library("auto").compile(
            StructuredOutputsParams(json=json.dumps({"type": "string", "pattern": pattern}))
        )
    except InvalidRequestError:
        return
    assert expected is not None
    for text in texts:
        is_expected = expected.search(text) is not None
        assert accepts(grammar, json.dumps(text, ensure_ascii=False)) == is_expected, text


def test_values_that_look_like_patterns_stay_as_they_are() -> None:
    value = {"pattern": "(", "patternProperties": {"[": 1}}
    schema = {"type": "object", "properties": {"pattern": {"const": value}}, "required": ["pattern"]}
    grammar = library("guidance").compile(StructuredOutputsParams(json=json.dumps(schema)))
    assert accepts(grammar, json.dumps({"pattern": value}))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(?=a)b", "look-around"),
        (r"a(?<!b)", "look-around"),
        (r"(a)\1", "backreferences"),
        (r"(?P<n>a)(?P=n)", "backreference"),
        (r"(?>a)", "atomic group"),
        (r"(?P<n>a)(?P<n>b)", "two groups"),
        (r"a*+", "possessive"),
        (r"\bfoo\b", "word boundary"),
        (r"[[:alpha:]]", "'[:'"),
        (r"[a-z&&[^b]]", "'&&'"),
        (r"[a-z--b]", "'--'"),
        (r"[\w-.]", "range from or to a class"),
        (r"[z-a]", "runs backwards"),
        (r"a^b", "not at the begin"),
        (r"(a$)*b", "not at the end"),
        (r"a{,3}", "count"),
        (r"a{3,2}", "runs backwards"),
        (r"x{2}{3}", "put a group around it"),
        (r"(?m)a", "flag 'm'"),
        (r"a(?i)b", "begin of the expression"),
        (r"\q", r"escape \q"),
        (r"\p{L", r"escape \p"),
        (r"[^\s\S]", "no character"),
        (r"\uD800", "no character"),
        (r"\x{110000}", "no character"),
        ("[", "unclosed"),
        ("(a", "unclosed"),
        ("a)", "closes no group"),
        ("*a", "repeats nothing"),
        ("a\\", "backslash"),
    ],
)
def test_what_has_no_common_meaning_is_refused_by_name(pattern: str, reason: str) -> None:
    with pytest.raises(RegexError, match=re.escape(reason)):
        parse_regex(pattern)
