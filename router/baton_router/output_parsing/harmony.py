"""Answers as GPT-OSS writes them: messages in channels, of which each has a header.

`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>`. The
channel `analysis` is reasoning, others are content. A message to a function is a call of it, such as
`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`. Text without a header is
content.

Source: OpenAI, "Harmony response format"; the names of the parsers are vLLM's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from baton_router.output_parsing.delta_writer import ChooseId, DeltaWriter, random_call_id
from baton_router.output_parsing.json_scanner import JsonScanner
from baton_router.output_parsing.output_parser import OutputDelta, OutputParser, ReasoningDelta, Tool
from baton_router.output_parsing.reasoning import ReasoningParser
from baton_router.output_parsing.tool_parser import Markers

_BEGIN: Final = Markers("<|start|>", "<|channel|>", " to=functions.")
_END_OF_HEADER: Final = Markers("<|message|>")
_CLOSING: Final = ("<|end|>", "<|return|>", "<|call|>")
_END: Final = Markers(*_CLOSING, "<|start|>", "<|channel|>")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTION: Final = re.compile(r"\bto=functions\.([\w.\-]+)")


@dataclass(frozen=True, slots=True, eq=False)
class _Message:
    is_analysis: bool = False
    function: str | None = None
    """Name of the function that is called."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a message: `text` of its body, and all that it was read from."""

    message: _Message
    text: str
    source: str
    is_last: bool = False


class _Messages:
    """Splits an answer that arrives in pieces. A header that is cut off is lost."""

    def __init__(self, message: _Message | None = None) -> None:
        """`message`: the answer begins within its body."""
        self._message = message or _Message()
        self._state: Callable[[str, int], int] = self._in_body if message else self._before_header
        self._header: list[str] = []
        self._pieces: list[_Piece] = []
        self._held = ""

    def push(self, text: str) -> list[_Piece]:
        text, self._held = self._held + text, ""
        at = 0
        while at < len(text):
            at = self._state(text, at)
        return self._take()

    def flush(self) -> list[_Piece]:
        if self._state == self._before_header and self._held:
            self._message, self._state = _Message(), self._in_body
        if self._state == self._in_body:
            self._pieces.append(_Piece(self._message, self._held, self._held, is_last=True))
        return self._take()

    def _take(self) -> list[_Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _hold(self, text: str, at: int) -> int:
        self._held = text[at:]
        return len(text)

    def _before_header(self, text: str, at: int) -> int:
        begins, marker = _BEGIN.match(text, at)
        if begins and not marker:
            return self._hold(text, at)
        self._message = _Message()
        self._state = self._in_header if marker else self._in_body
        return at

    def _in_header(self, text: str, at: int) -> int:
        end, marker = _END_OF_HEADER.find(text, at)
        self._header.append(text[at:end])
        if not marker:
            return self._hold(text, end)
        header = "".join(self._header)
        self._header.clear()
        channel, function = _CHANNEL.search(header), _FUNCTION.search(header)
        self._message = _Message(
            is_analysis=channel is not None and channel[1] == "analysis",
            function=function and function[1],
        )
        self._pieces.append(_Piece(self._message, "", header + marker))
        self._state = self._in_body
        return end + len(marker)

    def _in_body(self, text: str, at: int) -> int:
        end, marker = _END.find(text, at)
        if end > at:
            self._pieces.append(_Piece(self._message, text[at:end], text[at:end]))
        if not marker:
            return self._hold(text, end)
        closing = marker if marker in _CLOSING else ""
        self._pieces.append(_Piece(self._message, "", closing, is_last=True))
        self._state = self._before_header
        return end + len(closing)


class GptOssReasoningParser(ReasoningParser):
    """Passes the text of other messages on, and calls of functions as they are."""

    start_text: ClassVar[str] = "<|channel|>analysis<|message|>"
    end_text: ClassVar[str] = "<|end|><|start|>assistant<|channel|>final<|message|>"
    may_end: ClassVar[bool] = True
    thought_ends: ClassVar[tuple[str, ...]] = _CLOSING

    def __init__(self, answer: OutputParser, **options: Any) -> None:
        super().__init__(answer, **options)
        self._messages = _Messages(_Message(is_analysis=True) if self._starts_inside else None)

    def push(self, text: str) -> list[OutputDelta]:
        return self._read(self._messages.push(text))

    def flush(self) -> list[OutputDelta]:
        return [*self._read(self._messages.flush()), *self._answer.flush()]

    def _read(self, pieces: Iterable[_Piece]) -> list[OutputDelta]:
        deltas: list[OutputDelta] = []
        for piece in pieces:
            if piece.message.function is not None:
                deltas += self._answer.push(piece.source)
            elif not piece.message.is_analysis:
                deltas += self._answer.push(piece.text)
            elif piece.text:
                deltas.append(ReasoningDelta(text=piece.text))
        return deltas


class OpenAIToolParser(OutputParser):
    """Reads calls; the text of all other messages is content."""

    def __init__(self, tools: Sequence[Tool] = (), *, choose_id: ChooseId = random_call_id) -> None:
        self._out = DeltaWriter(choose_id)
        self._messages = _Messages()
        self._call: _Message | None = None
        """The call that has begun."""

    def push(self, text: str) -> list[OutputDelta]:
        return self._read(self._messages.push(text))

    def flush(self) -> list[OutputDelta]:
        deltas = self._read(self._messages.flush())
        self._out.end()
        return [*deltas, *self._out.take()]

    def _read(self, pieces: Iterable[_Piece]) -> list[OutputDelta]:
        for piece in pieces:
            if piece.message.function is None:
                self._out.text(piece.text)
            else:
                self._read_call(piece, piece.message.function)
        return self._out.take()

    def _read_call(self, piece: _Piece, name: str) -> None:
        if piece.message is not self._call:
            self._call, self._scanner, self._is_empty = piece.message, JsonScanner(), True
            self._out.start_call(name)
        text = piece.text.lstrip() if self._is_empty else piece.text
        if text and not (self._scanner.is_done or self._scanner.is_broken):
            self._is_empty = False
            self._out.arguments(self._scanner.read(text, 0)[1])
        if piece.is_last and self._is_empty:
            self._out.arguments("{}")
