"""A parser's output depends on the text alone, so an answer can be continued anywhere."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_router.output_parsing.output_parser import OutputParser
from baton_router.output_parsing.registry import find_reasoning_parser
from tests.property.test_answer_parsers import PARSERS, TEXTS, parts, pieces

CUTS = st.lists(st.integers(0, 500), max_size=12)


def shown(parser: OutputParser, chunks: list[str]) -> list[tuple[Any, ...]]:
    return parts(list(itertools.chain.from_iterable(map(parser.push, chunks))))


@pytest.mark.parametrize("name", sorted(PARSERS))
@given(text=TEXTS, cuts=CUTS)
@settings(max_examples=25)
def test_what_was_shown_so_far_does_not_depend_on_the_cuts(name: str, text: str, cuts: list[int]) -> None:
    assert shown(PARSERS[name](), pieces(text, cuts)) == shown(PARSERS[name](), [text])


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3"])
@given(text=TEXTS, cuts=CUTS, starts_inside=st.booleans())
@settings(max_examples=25)
def test_nor_does_what_was_shown_of_thoughts(
    name: str, text: str, cuts: list[int], starts_inside: bool
) -> None:
    one, other = (
        find_reasoning_parser(name)(PARSERS["hermes"](), starts_inside=starts_inside) for _ in range(2)
    )
    assert shown(one, pieces(text, cuts)) == shown(other, [text])
