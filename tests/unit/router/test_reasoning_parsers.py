"""Reasoning before an answer, with and without its markers, cut into pieces of every size."""

from __future__ import annotations

import pytest

from baton_core.errors import InvalidConfigError
from baton_router.output_parsing import registry
from baton_router.output_parsing.output_parser import (
    OutputDelta,
    ParsedOutput,
    PlainParser,
    ReasoningDelta,
    TextDelta,
    collect,
)
from baton_router.output_parsing.reasoning import ReasoningParser


def parse(
    name: str, text: str, *, starts_inside: bool = False, thinks: bool = True, tools: str | None = None
) -> ParsedOutput:
    """The answer, which must be the same however the text is cut."""
    answers = []
    for size in (1, 2, 3, 5, len(text) or 1):
        answer = registry.make_tool_parser(tools, (), lambda: "id") if tools else PlainParser()
        parser = registry.find_reasoning_parser(name)(
            answer, starts_inside=starts_inside, template_kwargs={"enable_thinking": thinks}
        )
        deltas: list[OutputDelta] = []
        for start in range(0, len(text), size):
            deltas += parser.push(text[start : start + size])
        answers.append(collect([*deltas, *parser.flush()]))
    assert all(answer == answers[-1] for answer in answers)
    return answers[-1]


def answer_of(reasoning: str | None, content: str | None) -> ParsedOutput:
    return ParsedOutput(content=content, reasoning=reasoning, tool_calls=())


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>Hm.\nYes.</think>\n\nHello", "Hm.\nYes.", "\n\nHello"),
        ("Hm.</think>Hello", "Hm.", "Hello"),
        ("\n<think>\nHm.</think>Hello", "\nHm.", "Hello"),
        ("\n Hm.</think>", "\n Hm.", None),
        ("Hm. No end </thin", "Hm. No end </thin", None),
        ("<think>", None, None),
        ("<thi", "<thi", None),
        ("</think>Hello", None, "Hello"),
        ("Hm. <think> again</think>Hello", "Hm. <think> again", "Hello"),
        ("Hm.</think>Hello</think>", "Hm.", "Hello</think>"),
        (" \n", " \n", None),
        ("", None, None),
    ],
)
def test_deepseek_r1_starts_inside_whether_or_not_it_says_so(
    text: str, reasoning: str | None, content: str | None
) -> None:
    assert parse("deepseek_r1", text) == answer_of(reasoning, content)
    assert parse("deepseek_r1", text, thinks=False) == answer_of(reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nHm.\n</think>\n\nHello", "\nHm.\n", "\n\nHello"),
        ("\n<think>Hm.</think>Hello", "Hm.", "Hello"),
        ("<think>Hm.", "Hm.", None),
        ("Hello", None, "Hello"),
        ("\nHello", None, "\nHello"),
        ("Hm.</think>Hello", None, "Hm.</think>Hello"),
        ("Hello <think>Hm.</think>", None, "Hello <think>Hm.</think>"),
        ("<thin", None, "<thin"),
        (" <", None, " <"),
        (" \n", None, " \n"),
    ],
)
def test_qwen3_thinks_only_between_its_markers(text: str, reasoning: str | None, content: str | None) -> None:
    assert parse("qwen3", text) == answer_of(reasoning, content)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [("Hm.</think>Hello", "Hm.", "Hello"), ("<think>Hm.</think>Hello", "Hm.", "Hello"), ("Hm.", "Hm.", None)],
)
def test_qwen3_starts_inside_where_the_prompt_has_opened_the_reasoning(
    text: str, reasoning: str | None, content: str | None
) -> None:
    assert parse("qwen3", text, starts_inside=True) == answer_of(reasoning, content)


def test_qwen3_does_not_think_when_the_request_forbids_it() -> None:
    text = "<think>Hm.</think>Hello"
    assert parse("qwen3", text, thinks=False) == answer_of(None, text)
    assert parse("qwen3", text, starts_inside=True, thinks=False) == answer_of(None, text)


def test_what_follows_the_reasoning_goes_to_the_tool_parser() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    answer = parse("qwen3", f"<think>Say {call}?</think>\n\n{call}", tools="hermes")
    assert answer.reasoning == f"Say {call}?"
    assert answer.content is None
    assert [(part.name, part.arguments) for part in answer.tool_calls] == [("f", '{"a": 1}')]
    llama = parse("deepseek_r1", 'Hm.</think>\n{"name": "f", "parameters": {}}', tools="llama3_json")
    assert [part.name for part in llama.tool_calls] == ["f"]


def test_reasoning_streams_but_for_what_may_be_the_marker() -> None:
    parser = registry.find_reasoning_parser("qwen3")(PlainParser())
    assert parser.push("<think>Hm") == [ReasoningDelta(text="Hm")]
    assert parser.push(" </thi") == [ReasoningDelta(text=" ")]
    assert parser.push("ngs </") == [ReasoningDelta(text="</things ")]
    assert parser.push("think>Hel") == [TextDelta(text="Hel")]
    assert parser.push("lo") == [TextDelta(text="lo")]
    assert parser.flush() == []


def test_a_parsers_class_has_its_markers() -> None:
    for name in ("deepseek_r1", "qwen3"):
        parser = registry.find_reasoning_parser(name)
        assert (parser.start_text, parser.end_text) == ("<think>", "</think>")


def test_an_unknown_parser_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(
        InvalidConfigError, match="--reasoning-parser is 'o1'; allowed: deepseek_r1, openai_gptoss, qwen3"
    ):
        registry.find_reasoning_parser("o1")(PlainParser())


def test_a_plug_in_may_bring_other_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bracketed(ReasoningParser):
        start_text = "[THINK]"
        end_text = "[/THINK]"

    monkeypatch.setattr(registry, "_REASONING_PARSERS", dict(registry._REASONING_PARSERS))
    registry.register_reasoning_parser("bracketed", Bracketed)
    assert parse("bracketed", "[THINK]Hm.[/THINK]Hello") == answer_of("Hm.", "Hello")
    with pytest.raises(InvalidConfigError, match="'bracketed'; allowed: any but"):
        registry.register_reasoning_parser("bracketed", Bracketed)
