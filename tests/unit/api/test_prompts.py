"""Prompts and conversations as callers give them."""

from __future__ import annotations

from typing import Any

import pytest

from baton.api.conversations import ChatOptions, as_conversations
from baton.api.prompts import PromptParts, as_list, one_each, read_prompt
from baton_core.errors import InvalidRequestError

MESSAGE = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("a", PromptParts(text="a", token_ids=None)),
        ([1, 2], PromptParts(text=None, token_ids=(1, 2))),
        ((1, 2), PromptParts(text=None, token_ids=(1, 2))),
        ({"prompt": "a"}, PromptParts(text="a", token_ids=None)),
        ({"prompt_token_ids": [1]}, PromptParts(text=None, token_ids=(1,))),
        ({"prompt_token_ids": [1], "prompt": "a"}, PromptParts(text="a", token_ids=(1,))),
        ({"prompt": "a", "cache_salt": "s"}, PromptParts(text="a", token_ids=None, cache_salt="s")),
        ({"prompt": "a", "multi_modal_data": None}, PromptParts(text="a", token_ids=None)),
    ],
)
def test_one_prompt_is_read_and_is_one_of_a_list(given: Any, parts: PromptParts) -> None:
    assert read_prompt(given) == parts
    assert as_list(given) == [given]
    assert as_list([given, given]) == [given, given]


@pytest.mark.parametrize(
    "given", [None, 3, {"text": "a"}, {}, ["a", 1], {"prompt": 3}, b"a", {"prompt_token_ids": b"a"}]
)
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt is .*allowed: text, token ids"):
        read_prompt(given)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("token_type_ids", "unless the model pools"),
        ("multi_modal_data", "models of text alone"),
        ("encoder_prompt", "models with an encoder"),
    ],
)
def test_a_part_that_nothing_here_uses_is_refused_with_the_reason(key: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{key} is .*; allowed: nothing[:,] {reason}"):
        read_prompt({"prompt_token_ids": [1], key: [0]})  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt": "a"}, r"is \[0, 1\]; allowed: nothing without prompt_token_ids"),
        ({"prompt_token_ids": [1, 2, 3]}, "is '2 numbers'; allowed: 3, one for each of prompt_token_ids"),
    ],
)
def test_types_are_those_of_token_ids(given: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"token_type_ids {message}"):
        read_prompt({**given, "token_type_ids": [0, 1]}, takes_types=True)


def test_text_has_to_be_text() -> None:
    with pytest.raises(InvalidRequestError, match="text that UTF-8 can hold"):
        read_prompt("\ud800")


def test_no_prompts_are_no_prompts() -> None:
    assert as_list([]) == []


def test_bytes_are_no_prompts() -> None:
    with pytest.raises(InvalidRequestError, match=r"prompts is b'a'; allowed: text, token ids"):
        as_list(b"a")


def test_values_are_for_all_or_for_each() -> None:
    assert one_each("priority", None, 0, 2) == [0, 0]
    assert one_each("priority", 3, 0, 2) == [3, 3]
    assert one_each("priority", [1, 2], 0, 2) == [1, 2]
    with pytest.raises(
        InvalidRequestError, match="priority is 'a list of 1'; allowed: a list of 2, or one value"
    ):
        one_each("priority", [1], 0, 2)


def test_one_conversation_or_many() -> None:
    options = ChatOptions()
    (one,) = as_conversations([MESSAGE, MESSAGE], options)
    assert one.messages == (MESSAGE, MESSAGE)
    assert one.add_generation_prompt
    assert [chat.messages for chat in as_conversations([[MESSAGE], [MESSAGE] * 2], options)] == [
        (MESSAGE,),
        (MESSAGE, MESSAGE),
    ]


@pytest.mark.parametrize("given", [None, "a", ["a"], [3], 3])
def test_what_is_no_conversation_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages is .*; allowed: a list of messages"):
        as_conversations(given, ChatOptions())


def test_options_of_the_template_are_handed_on() -> None:
    options = ChatOptions(
        chat_template="{{ messages }}",
        chat_template_content_format="openai",
        add_generation_prompt=False,
        continue_final_message=True,
        tools=[{"type": "function"}],
        chat_template_kwargs={"enable_thinking": False},
    )
    (conversation,) = as_conversations([MESSAGE], options)
    assert conversation.template == "{{ messages }}"
    assert conversation.content_formats is not None
    assert conversation.content_formats.takes_parts
    assert not conversation.content_formats.takes_text
    assert (conversation.add_generation_prompt, conversation.continue_final_message) == (False, True)
    assert conversation.tools == ({"type": "function"},)
    assert conversation.template_arguments == {"enable_thinking": False}
    with pytest.raises(InvalidRequestError, match="chat_template_content_format is 'xml'; allowed: auto"):
        ChatOptions(chat_template_content_format="xml")
