"""Requests of the Messages API as the chats that they become."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from baton_router.http.messages.request import as_chat, unmade_edits
from baton_router.http.messages.schemas import CountRequest, MessagesRequest

CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "31"}]}
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=5f;"


def said(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


def conversation(messages: list[dict[str, Any]], **fields: Any) -> list[tuple[str, Any]]:
    body = msgspec.convert({"messages": messages, **fields}, CountRequest)
    return [(message.role, message.content) for message in as_chat(body, has_reasoning=False).messages]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (said(("system", "S"), ("user", "A")), [("system", "top\n\nS"), ("user", "A")]),
        (said(("user", "A"), ("system", "S"), ("system", "T")), [("user", "A\n\nS\n\nT")]),
        (
            said(("user", "A"), ("assistant", "B"), ("system", "S"), ("user", "C")),
            [("user", "A"), ("assistant", "B"), ("user", "S\n\nC")],
        ),
        (
            said(("user", "A"), ("assistant", "B"), ("system", "S"), ("assistant", "C")),
            [("user", "A"), ("assistant", "B"), ("user", "S"), ("assistant", "C")],
        ),
        (
            said(("user", "A"), ("assistant", "B"), ("system", "S")),
            [("user", "A"), ("assistant", "B"), ("user", "S")],
        ),
        (
            [*said(("user", "A")), CALLED, *said(("system", "S")), RESULT, *said(("system", "T"))],
            [("user", "A"), ("assistant", None), ("tool", "S\n\n31\n\nT")],
        ),
        (said(("ctx", "A"), ("msg", "B")), [("user", "A"), ("user", "B")]),
    ],
)
def test_a_later_system_message_joins_its_neighbour(
    messages: list[dict[str, Any]], expected: list[tuple[str, Any]]
) -> None:
    read = conversation(messages, system="top")
    assert read == (expected if expected[0][0] == "system" else [("system", "top"), *expected])


def test_the_billing_header_of_a_system_prompt_is_left_out() -> None:
    parts = [{"type": "text", "text": text} for text in (BILLING, "Be", "brief.")]
    user = said(("user", "A"))
    assert conversation(user, system=parts) == [("system", "Be\nbrief."), ("user", "A")]
    assert conversation([*user, {"role": "system", "content": parts}]) == [("user", "A\n\nBe\nbrief.")]
    assert conversation(user, system=parts[:1]) == [("user", "A")]


def test_a_conversation_of_an_empty_system_message_has_one_message() -> None:
    assert conversation(said(("system", "")), system="") == [("system", "")]


@pytest.mark.parametrize(("last", "continues"), [("assistant", True), ("system", None), ("user", None)])
def test_only_a_last_message_of_the_assistant_is_continued(last: str, continues: bool | None) -> None:
    body = msgspec.convert({"messages": said(("user", "A"), ("assistant", "B"), (last, ""))}, CountRequest)
    assert as_chat(body, has_reasoning=False).continue_final_message is continues


def test_a_reference_to_a_tool_is_read_as_its_name() -> None:
    found = [{"type": "tool_reference", "tool_name": name} for name in ("WebFetch", "Grep")]
    result = {"type": "tool_result", "tool_use_id": "t", "content": found}
    messages = [{"role": "user", "content": [result, *found]}]
    assert conversation(messages) == [("tool", "WebFetch\nGrep"), ("user", "WebFetch\nGrep")]


@pytest.mark.parametrize(
    ("edit", "is_made"),
    [
        ({"type": "clear_thinking_20251015", "keep": "all"}, True),
        ({"type": "clear_thinking_20251015", "keep": {"type": "all"}}, True),
        ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}, False),
        ({"type": "clear_thinking_20251015"}, False),
        ({"type": "clear_tool_uses_20250919", "keep": "all"}, False),
    ],
)
def test_an_edit_that_takes_nothing_out_is_made(edit: dict[str, Any], is_made: bool) -> None:
    fields = {"messages": said(("user", "A")), "context_management": {"edits": [edit]}}
    unmade = list(unmade_edits(msgspec.convert(fields, CountRequest)))
    assert unmade == ([] if is_made else [("context_management.edits[0]", edit)])


def test_a_budget_of_thinking_may_exceed_the_tokens_of_one_reply() -> None:
    thinking = {"type": "enabled", "budget_tokens": 4096}
    fields = {"messages": said(("user", "A")), "max_tokens": 50, "thinking": thinking}
    chat = as_chat(msgspec.convert(fields, MessagesRequest), has_reasoning=True)
    assert (chat.thinking_token_budget, chat.max_completion_tokens) == (4096, 50)
