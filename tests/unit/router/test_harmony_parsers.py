"""Channels of GPT-OSS, read by both parsers and by each alone, cut into pieces of every size."""

from __future__ import annotations

import pytest

from baton_router.output_parsing import registry
from baton_router.output_parsing.output_parser import (
    OutputParser,
    ParsedOutput,
    PlainParser,
    TextDelta,
    ToolCallDelta,
)
from tests.unit.router.output_parsers import calls, make_parser, read

THOUGHT = "<|channel|>analysis<|message|>Hm, a < b.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "}"}'


def parsers(
    *, has_reasoning: bool = True, has_tools: bool = True, starts_inside: bool = False
) -> OutputParser:
    answer = make_parser("openai") if has_tools else PlainParser()
    if not has_reasoning:
        return answer
    return registry.find_reasoning_parser("openai_gptoss")(answer, starts_inside=starts_inside)


def parse(text: str, **options: bool) -> ParsedOutput:
    """The answer, which must be the same however the text is cut."""
    answers = [read(parsers(**options), text, size) for size in range(1, len(text) + 2)]
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (f"{THOUGHT}{FINAL}Yes.<|return|>", "Hm, a < b.", "Yes."),
        (f"{THOUGHT}{FINAL}\nYes. <|retu", "Hm, a < b.", "\nYes. <|retu"),
        ("<|channel|>final<|message|>Yes.", None, "Yes."),
        (
            f"{THOUGHT}<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>",
            "Hm, a < b.",
            "I look.",
        ),
        (f"{THOUGHT}<|start|>assistant{THOUGHT}", "Hm, a < b." * 2, None),
        (f'{THOUGHT}{{"a": 1}}', "Hm, a < b.", '{"a": 1}'),
        ("<|channel|>analysis to=python<|message|>1 + 1<|call|>", "1 + 1", None),
        ("<|channel|>analysis<|message|>Hm", "Hm", None),
        ("<|channel|>anal", None, None),
        ("Yes, <|.", None, "Yes, <|."),
        ("<|chan", None, "<|chan"),
        ("", None, None),
    ],
)
def test_analysis_is_reasoning_and_other_channels_are_content(
    text: str, reasoning: str | None, content: str | None
) -> None:
    expected = ParsedOutput(content=content, reasoning=reasoning, tool_calls=())
    assert parse(text) == parse(text, has_tools=False) == expected
    whole = (reasoning or "") + (content or "")
    alone = ParsedOutput(content=whole or None, reasoning=None, tool_calls=())
    assert parse(text, has_reasoning=False) == alone


def test_an_answer_may_begin_within_the_analysis() -> None:
    answer = parse(f"Hm.<|end|>{FINAL}Yes.", starts_inside=True)
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")


@pytest.mark.parametrize("end", ["", "<|call|>"])
@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        (CALL, "f", '{"a": "}"}'),
        (" to=functions.get-weather<|channel|>commentary json<|message|> {} ", "get-weather", "{}"),
        ("<|channel|>commentary to=functions.a.b<|message|>", "a.b", "{}"),
        ('<|channel|>analysis to=functions.f code<|message|>{"a": "é', "f", '{"a": "é'),
        ("<|channel|>commentary to=functions.f<|message|>{} {}", "f", "{}"),
    ],
)
def test_a_message_to_a_function_is_a_call(call: str, name: str, arguments: str, end: str) -> None:
    alone = ParsedOutput(content=None, reasoning=None, tool_calls=calls((name, arguments)))
    assert parse(call + end) == parse(call + end, has_reasoning=False) == alone
    assert parse(f"{THOUGHT}{CALL}<|call|>{call}{end}") == ParsedOutput(
        content=None, reasoning="Hm, a < b.", tool_calls=calls(("f", '{"a": "}"}'), (name, arguments))
    )


def test_content_comes_before_a_call_whose_arguments_stream() -> None:
    parser = parsers()
    assert parser.push(f"{FINAL}I look.<|end|>{CALL[:-4]}") == [
        TextDelta(text="I look."),
        ToolCallDelta(index=0, call_id="id-0", name="f"),
        ToolCallDelta(index=0, arguments='{"a": '),
    ]
    assert parser.push(CALL[-4:]) == [ToolCallDelta(index=0, arguments='"}"}')]


def test_a_call_that_nobody_reads_is_content_to_the_letter() -> None:
    text = f"{CALL}<|call|>"
    assert parse(THOUGHT + text, has_tools=False) == ParsedOutput(
        content=text, reasoning="Hm, a < b.", tool_calls=()
    )
