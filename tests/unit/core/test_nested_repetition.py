from __future__ import annotations

import pytest

from baton_core.requests.expression_tree import has_nested_repetition
from baton_core.requests.regex_syntax import parse_regex


@pytest.mark.parametrize(
    "expression",
    ["(a*)*", "([a-z]{1,3} ){1,4}", "((ab)*c)+", "(a(b*)){2}", "(?i:a+)+", r"x(\d+)(\.\d+)?", "(a??)*"],
)
def test_a_repeated_group_with_a_repetition_in_it_is_seen(expression: str) -> None:
    assert has_nested_repetition(parse_regex(expression))


@pytest.mark.parametrize(
    "expression", ["(a|b)*c", "(?:a?)b", "(a(b*))", r"\(a*\)*", "[(*]*", "a*b*", "((a))*", "(?:ab)+", "a*?"]
)
def test_repetitions_beside_each_other_are_none_of_these(expression: str) -> None:
    assert not has_nested_repetition(parse_regex(expression))
