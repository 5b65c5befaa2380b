"""Which requests may take long is known before any of them is read."""

from __future__ import annotations

import pytest

from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.embeds.given_embeds import EmbedsPrompt, PromptTokens
from baton_router.requests.lanes import choose_lane
from baton_router.text.chat_template import Conversation
from baton_router.text.large_texts import LARGE
from baton_router.text.prompts import AnyPrompt, TextPair
from baton_router.text.tokenizing_threads import Lane

_USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("prompt", "lane"),
    [
        ("hello there", Lane.SHORT),
        ((1,) * LARGE, Lane.SHORT),
        (Conversation(messages=(_USER,)), Lane.SHORT),
        ("a" * LARGE, Lane.LONG),
        (TextPair(first="a" * (LARGE - 1), second="b"), Lane.LONG),
        (Conversation(messages=(_USER,), template="{{ messages }}"), Lane.LONG),
        (Conversation(messages=({"role": "user", "content": "a" * LARGE},)), Lane.LONG),
        (Conversation(messages=(_USER,) * (LARGE // 4)), Lane.LONG),
        (Conversation(messages=({"role": "user", "content": [{"text": "a" * LARGE}]},)), Lane.LONG),
        (Conversation(messages=(_USER,), tools=({"a" * LARGE: 1},)), Lane.LONG),
        (Conversation(messages=(_USER,), documents=({"text": "a" * LARGE},)), Lane.LONG),
        (Conversation(messages=(_USER,), template_arguments={"more": [0] * LARGE}), Lane.LONG),
        (EmbedsPrompt(lambda limits: PromptTokens(token_ids=(1,))), Lane.LONG),
    ],
)
def test_large_texts_and_own_templates_are_long(prompt: AnyPrompt | TextPair, lane: Lane) -> None:
    assert choose_lane(prompt) is lane


@pytest.mark.parametrize(
    ("grammar", "lane"),
    [
        (None, Lane.SHORT),
        (StructuredOutputsParams(choice=("a", "b")), Lane.SHORT),
        (StructuredOutputsParams(json_object=True), Lane.SHORT),
        (StructuredOutputsParams(regex="a*"), Lane.GRAMMAR),
        (StructuredOutputsParams(json="{}"), Lane.GRAMMAR),
    ],
)
def test_a_grammar_that_takes_a_check_has_a_lane_of_its_own(
    grammar: StructuredOutputsParams | None, lane: Lane
) -> None:
    assert choose_lane("hello", grammar) is lane
    assert choose_lane("a" * LARGE, grammar) is Lane.LONG
