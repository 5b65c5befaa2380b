"""Answers made of anything, cut anywhere: the same parts come out, no text is lost, little is held back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_router.output_parsing.harmony import OpenAIToolParser
from baton_router.output_parsing.json_scanner import JsonScanner
from baton_router.output_parsing.output_parser import (
    OutputDelta,
    OutputParser,
    PlainParser,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCallDelta,
    collect,
)
from baton_router.output_parsing.registry import find_reasoning_parser, make_tool_parser, tool_parser_names
from baton_router.output_parsing.tool_parser import ToolParser
from baton_router.output_parsing.tools_forced import NamedToolParser, RequiredToolsParser

TOOLS = (
    Tool(name="f", parameters={"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}),
    Tool(name="g"),
)
MAX_MARKER = len("\n</parameter>")


def ids() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"id-{next(numbers)}"


def make(name: str) -> OutputParser:
    return make_tool_parser(name, TOOLS, ids())


PARSERS: dict[str, Callable[[], OutputParser]] = {
    **{name: partial(make, name) for name in tool_parser_names()},
    "required": lambda: RequiredToolsParser(choose_id=ids()),
    "named": lambda: NamedToolParser("f", choose_id=ids()),
    "plain": PlainParser,
}

WORDS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<function=f>", "<parameter=n>", "<parameter=s>", "</parameter>"),
        *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "analysis", " to=functions.f"),
        *("</function>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<think>", "</think>"),
        *('{"name": "f", "arguments": {"s": "x"}}', '{"name": "f", "parameters": {}}', '{"arguments":{}'),
        *('"name": "g"', '{"s": "a</tool_call>\\n"}', "[f(s='a', n=1), g()]", "[f(", "f", "g(n=[1])", "'''"),
        *("{", "}", "[", "]", ",", ":", ";", '"', "'", "\\", "(", ")", " ", "\n", "<", ">", "-1.5e3", "true"),
        *("Hello, ", "é😀", "\x00", "\u2028", "\ud800"),
    ]
)
TEXTS = st.lists(WORDS | st.text(max_size=3), max_size=25).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(min_size=1, max_size=5), JSON, max_size=4)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g", "no_such.tool"]), ARGUMENTS), min_size=1, max_size=3)


def pieces(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def parts(deltas: list[OutputDelta]) -> list[tuple[Any, ...]]:
    """The deltas in their order, neighbours of one kind joined."""
    joined: list[tuple[Any, ...]] = []
    for delta in deltas:
        match delta:
            case ToolCallDelta(index=index, call_id=call_id, name=name, arguments=text):
                kind: tuple[Any, ...] = ("call", index)
                assert (call_id is None) == (name is None)
                if name is not None:
                    joined.append((*kind, call_id, name))
            case TextDelta(text=text):
                kind = ("content",)
            case ReasoningDelta(text=text):
                kind = ("reasoning",)
        if joined and joined[-1][:-1] == (*kind, "text"):
            joined[-1] = (*joined[-1][:-1], joined[-1][-1] + text)
        elif text:
            joined.append((*kind, "text", text))
    return joined


def run(parser: OutputParser, chunks: list[str]) -> list[OutputDelta]:
    return [*itertools.chain.from_iterable(map(parser.push, chunks)), *parser.flush()]


@pytest.mark.parametrize("name", sorted(PARSERS))
@given(text=TEXTS, cuts=st.lists(st.integers(0, 500), max_size=12))
def test_the_cuts_change_nothing(name: str, text: str, cuts: list[int]) -> None:
    whole = parts(run(PARSERS[name](), [text]))
    assert parts(run(PARSERS[name](), pieces(text, cuts))) == whole
    assert parts(run(PARSERS[name](), list(text))) == whole
    if not any(part[0] == "call" for part in whole):
        content = "".join(part[-1] for part in whole)
        takes_marks_away = name == "openai" and ("<|" in text or " to=functions." in text)
        assert content == text or takes_marks_away or (name == "required" and not content)


@pytest.mark.parametrize("name", ["deepseek_r1", "openai_gptoss", "qwen3"])
@given(text=TEXTS, cuts=st.lists(st.integers(0, 500), max_size=12), starts_inside=st.booleans())
def test_the_cuts_change_nothing_after_reasoning(
    name: str, text: str, cuts: list[int], starts_inside: bool
) -> None:
    def make_reasoner() -> OutputParser:
        return find_reasoning_parser(name)(PARSERS["hermes"](), starts_inside=starts_inside)

    whole = parts(run(make_reasoner(), [text]))
    assert parts(run(make_reasoner(), pieces(text, cuts))) == whole
    assert parts(run(make_reasoner(), list(text))) == whole


@pytest.mark.parametrize("name", sorted(PARSERS.keys() - {"plain"}))
@given(text=TEXTS)
def test_no_more_than_a_marker_is_read_twice(name: str, text: str) -> None:
    parser = PARSERS[name]()
    assert isinstance(parser, ToolParser | OpenAIToolParser)
    for character in text:
        parser.push(character)
        held = parser._held if isinstance(parser, ToolParser) else parser._messages._held
        assert len(held) < MAX_MARKER + 2


def hermes(calls: list[tuple[str, Any]]) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in calls
    )


def llama(calls: list[tuple[str, Any]]) -> str:
    return "; ".join(
        json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False) for name, arguments in calls
    )


def mistral_list(calls: list[tuple[str, Any]]) -> str:
    listed = [{"arguments": arguments, "name": name} for name, arguments in calls]
    return f"[TOOL_CALLS]{json.dumps(listed, indent=1)}"


def mistral(calls: list[tuple[str, Any]]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


def required(calls: list[tuple[str, Any]]) -> str:
    return json.dumps([{"name": name, "parameters": arguments} for name, arguments in calls])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("hermes", hermes),
        ("llama3_json", llama),
        ("mistral", mistral_list),
        ("mistral", mistral),
        ("required", required),
    ],
)
@given(calls=CALLS, cuts=st.lists(st.integers(0, 500), max_size=12))
def test_every_json_call_comes_out_as_it_was_written(
    name: str, write: Callable[[list[tuple[str, Any]]], str], calls: list[tuple[str, Any]], cuts: list[int]
) -> None:
    answer = collect(run(PARSERS[name](), pieces(write(calls), cuts)))
    assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == calls
    assert answer.content is None


PYTHON = st.recursive(
    st.none() | st.booleans() | st.integers(min_value=0) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    calls=st.lists(
        st.tuples(st.sampled_from("fg"), st.dictionaries(st.sampled_from("abc"), PYTHON)), min_size=1
    ),
    cuts=st.lists(st.integers(0, 500), max_size=12),
)
def test_every_pythonic_call_comes_out_as_json(calls: list[tuple[str, Any]], cuts: list[int]) -> None:
    written = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    answer = collect(run(PARSERS["pythonic"](), pieces(f"[{', '.join(written)}]", cuts)))
    assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == calls
    assert answer.content is None


@given(
    text=JSON.map(json.dumps) | st.text(alphabet='{}[]",:\\ 01-.eEutrfalsn\n', max_size=12), tail=st.text()
)
def test_the_scanner_agrees_with_the_json_module(text: str, tail: str) -> None:
    document = f"[{text}]"
    try:
        json.loads(document, parse_constant=lambda name: json.loads(""), strict=False)
        is_json = True
    except ValueError:
        is_json = False
    scanner = JsonScanner()
    end, taken = scanner.read(document + tail, 0)
    assert (scanner.is_done and end == len(document)) == is_json
    assert not is_json or json.loads(taken) == json.loads(document, strict=False)
    assert not (scanner.is_done and scanner.is_broken)
