"""The parts of a message of the chat API, and the parsers that split the model's text into them.

A parser is a text machine, one for each sequence: the model's text goes in piece by piece, as the
detokenizer makes it, and parts of the answer come out. How the text is cut changes nothing but where the
parts are cut; so an answer that is not streamed is one `push` and a `flush`, put together by `collect`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the request offers; `parameters` is the JSON schema of its arguments, if it has one."""

    name: str
    parameters: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of the content."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of one tool call; `index` counts the calls of this answer from 0.

    The first piece of a call alone has `call_id` and `name`. All `arguments` of a call, joined, are the JSON
    object that the function is called with; they end early where the model's text does or stops being JSON.
    """

    index: int
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""


OutputDelta = TextDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    call_id: str
    name: str
    arguments: str
    """JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedOutput:
    """A complete answer; None where it has no such part."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]


class OutputParser(ABC):
    """Takes the text of one sequence apart.

    No text makes it raise. What was to be a tool call and is none comes out as content; nothing is lost but
    the syntax of a call that the end of the text cuts off, if it is required or others precede it.
    """

    @abstractmethod
    def push(self, text: str) -> list[OutputDelta]:
        """Take more text; return what is certain by now."""

    @abstractmethod
    def flush(self) -> list[OutputDelta]:
        """Return what was held back: the sequence is over. The parser is spent then."""


class PlainParser(OutputParser):
    """Every character is content: for requests without tools."""

    def push(self, text: str) -> list[OutputDelta]:
        return [TextDelta(text=text)] if text else []

    def flush(self) -> list[OutputDelta]:
        return []


def collect(deltas: Iterable[OutputDelta]) -> ParsedOutput:
    """Join all deltas of one answer, in the order in which they came."""
    content: list[str] = []
    reasoning: list[str] = []
    heads: list[tuple[str, str]] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        match delta:
            case TextDelta(text=text):
                content.append(text)
            case ReasoningDelta(text=text):
                reasoning.append(text)
            case ToolCallDelta():
                if delta.index == len(heads):
                    heads.append((delta.call_id or "", delta.name or ""))
                    arguments.append([])
                arguments[delta.index].append(delta.arguments)
    return ParsedOutput(
        content="".join(content) or None,
        reasoning="".join(reasoning) or None,
        tool_calls=tuple(
            ToolCall(call_id=call_id, name=name, arguments="".join(pieces))
            for (call_id, name), pieces in zip(heads, arguments, strict=True)
        ),
    )
