"""Builders for the tests of the parsers: tools, calls, and answers read in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from baton_router.output_parsing import registry
from baton_router.output_parsing.output_parser import (
    OutputDelta,
    OutputParser,
    ParsedOutput,
    Tool,
    ToolCall,
    collect,
)

WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
TYPED = Tool(
    name="f",
    parameters={
        "type": "object",
        "$defs": {"Point": {"type": "object"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}},
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "flag": {"type": "boolean"},
            "items": {"type": "array"},
            "point": {"$ref": "#/$defs/Point"},
            "loop": {"$ref": "#/$defs/Loop"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "either": {"type": ["integer", "null"]},
            "level": {"enum": [1, 2, "high"]},
            "three": {"const": 3},
        },
    },
)
CALL = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'
ARGUMENTS = '{"city": "Paris", "days": 2}'


def make_parser(name: str, tools: Sequence[Tool] = (WEATHER,)) -> OutputParser:
    ids = itertools.count()
    return registry.make_tool_parser(name, tools, lambda: f"id-{next(ids)}")


def stream(parser: OutputParser, text: str, size: int) -> Iterator[list[OutputDelta]]:
    for start in range(0, len(text), size):
        yield parser.push(text[start : start + size])
    yield parser.flush()


def parse(name: str, text: str, tools: Sequence[Tool] = (WEATHER,)) -> ParsedOutput:
    """The answer, which must be the same however the text is cut."""
    answers = [
        collect(itertools.chain(*stream(make_parser(name, tools), text, size)))
        for size in (1, 2, 3, 7, len(text) or 1)
    ]
    assert all(answer == answers[-1] for answer in answers)
    return answers[-1]


def calls(*parts: tuple[str, str]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(call_id=f"id-{index}", name=name, arguments=arguments)
        for index, (name, arguments) in enumerate(parts)
    )


def content(text: str | None) -> ParsedOutput:
    return ParsedOutput(content=text, reasoning=None, tool_calls=())


def read(parser: OutputParser, text: str, size: int) -> ParsedOutput:
    return collect(itertools.chain(*stream(parser, text, size)))
