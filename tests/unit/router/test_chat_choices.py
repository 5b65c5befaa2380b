"""Choices of a chat: however a text arrives in pieces, the same message comes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.requests.logprobs import PositionLogprobs
from baton_router.http.chat.choices import ChoiceOptions, ChoiceWriter
from baton_router.http.chat.output_parsers import ReasoningUse
from baton_router.http.chat.tool_choice import Choice, ToolUse
from baton_router.output_parsing.output_parser import Tool
from baton_router.output_parsing.registry import find_reasoning_parser
from baton_router.requests.generation import Delta
from baton_router.requests.thinking import Thinking
from tests.integration.router_cluster import TOKENIZER

TOOLS = (Tool(name="f", parameters={"type": "object"}), Tool(name="g"))
AUTO = ToolUse(choice=Choice.AUTO, tools=TOOLS, parser_name="hermes")
CALL = '<tool_call>{"name": "f", "arguments": {"x": "<|é"}}</tool_call>'
FORM = ChoiceOptions(
    role="assistant",
    echo="",
    tool_use=AUTO,
    has_reasoning=True,
    hides_reasoning=False,
    has_logprobs=False,
    has_token_ids=False,
    names_ids=False,
)


def writer(form: ChoiceOptions = FORM) -> ChoiceWriter:
    parser = form.tool_use.make_parser()
    if form.has_reasoning:
        qwen = find_reasoning_parser("qwen3")
        parser = ReasoningUse(parser=qwen, template_arguments={}, thinking=Thinking.BEFORE).make_parser(
            parser
        )
    return ChoiceWriter(0, form, parser, TOKENIZER)


def delta(text: str, finish_reason: str | None = None, **fields: Any) -> Delta:
    return Delta(index=0, text=text, token_ids=(5,), finish_reason=finish_reason, **fields)


def message_of(text: str, form: ChoiceOptions = FORM, reason: str = "stop") -> dict[str, Any]:
    choice = msgspec.to_builtins(writer(form).whole(delta(text, reason)))
    for call in choice["message"].get("tool_calls", ()):
        del call["id"]
    return choice


def joined(texts: list[str], form: ChoiceOptions = FORM) -> dict[str, Any]:
    """Join a stream's chunks as a client does."""
    stream = writer(form)
    pieces = [stream.piece(delta(text)) for text in texts] + [stream.piece(delta("", "stop"))]
    parts: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": {}}
    for piece in (piece for piece in pieces if piece is not None):
        new = msgspec.to_builtins(piece.delta)
        parts["content"] += new.get("content", "")
        parts["reasoning"] += new.get("reasoning", "")
        for call in new.get("tool_calls", ()):
            made = parts["tool_calls"].setdefault(call["index"], {"name": "", "arguments": ""})
            for key, value in call["function"].items():
                made[key] += value
    assert pieces[-1] is not None
    return {**parts, "finish_reason": pieces[-1].finish_reason}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pieces_join_to_the_whole(data: st.DataObject) -> None:
    words = st.sampled_from(["<think>", "</think>", "Hi ", CALL, "<tool_call>", "\n", '{"a": 1}', "<"])
    text = "".join(data.draw(st.lists(words, max_size=6)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = message_of(text)
    streamed = joined(pieces)
    assert (whole["message"]["content"] or "") == streamed["content"]
    assert (whole["message"]["reasoning"] or "") == streamed["reasoning"]
    calls = [call["function"] for call in whole["message"].get("tool_calls", ())]
    assert calls == list(streamed["tool_calls"].values())
    assert whole["finish_reason"] == streamed["finish_reason"] == ("tool_calls" if calls else "stop")


def test_content_is_null_only_where_there_is_something_else() -> None:
    assert message_of("")["message"]["content"] == ""
    assert message_of(CALL)["message"]["content"] is None
    assert message_of("<think>Hm")["message"]["content"] is None
    assert message_of("So. " + CALL)["message"]["content"] == "So. "


def test_an_answer_that_is_cut_off_in_a_call_ends_with_length() -> None:
    cut = message_of('<tool_call>{"name": "f", "arguments": {"x": "', reason="length")
    assert cut["finish_reason"] == "length"
    assert cut["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": "'}


def test_held_back_text_makes_no_piece_unless_tokens_are_told() -> None:
    entry = PositionLogprobs(token_ids=(5,), logprobs=(-1.0,), ranks=(1,))
    assert writer().piece(delta("<tool_")) is None
    told = writer(replace(FORM, has_logprobs=True)).piece(delta("<tool_", logprobs=(entry,)))
    assert told is not None
    assert msgspec.to_builtins(told)["delta"] == {}
    assert told.logprobs is not None
    counted = writer(replace(FORM, has_token_ids=True)).piece(delta("<tool_"))
    assert counted is not None
    assert counted.token_ids == [5]


def test_hidden_thoughts_take_their_tokens_with_them() -> None:
    entry = PositionLogprobs(token_ids=(5,), logprobs=(-1.0,), ranks=(1,))
    hidden = replace(FORM, hides_reasoning=True, has_logprobs=True, has_token_ids=True)
    assert writer(hidden).piece(delta("<think>Hm", logprobs=(entry,))) is None
    choice = writer(hidden).whole(delta("<think>Hm</think>So.", "stop", logprobs=(entry,)))
    assert (choice.message.content, choice.message.reasoning, choice.logprobs) == ("So.", None, None)
    assert choice.token_ids is None


def test_ids_of_calls_are_such_as_the_models_template_takes() -> None:
    for choice in (Choice.REQUIRED, Choice.NAMED):
        use = ToolUse(choice=choice, tools=TOOLS, parser_name="mistral")
        text = '[{"name": "f", "parameters": {}}]' if choice is Choice.REQUIRED else "{}"
        made = writer(replace(FORM, tool_use=use, has_reasoning=False)).whole(delta(text, "stop"))
        assert isinstance(made.message.tool_calls, list)
        (call,) = made.message.tool_calls
        assert len(call.id) == 9
        assert call.id.isalnum()
