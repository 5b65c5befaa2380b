"""Writes the parts of one reply: as events while they come, or whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from baton_router.http.chat.tool_choice import ToolUse
from baton_router.http.messages.replies import (
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageEnd,
    Part,
    PartJsonDelta,
    PartSignatureDelta,
    PartTextDelta,
    PartThinkingDelta,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolUsePart,
)
from baton_router.output_parsing.output_parser import (
    OutputDelta,
    OutputParser,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from baton_router.requests.generation import Delta
from baton_router.text.characters import read_json

PartEvent = BlockStart | BlockDelta | BlockStop
_EMPTY_TEXT = TextPart(text="")


class PartWriter:
    """Takes one sequence apart; after its last piece the writer is spent, and `parts` are whole."""

    def __init__(self, parser: OutputParser, tool_use: ToolUse) -> None:
        self.parts: list[Part] = []
        """The parts that are whole."""
        self._parser = parser
        self._tool_use = tool_use
        self._open: Part | None = None
        self._call = -1
        """Number of the call that is open."""
        self._texts: list[str] = []
        self._has_calls = False

    def piece(self, delta: Delta) -> Iterator[PartEvent]:
        """Yield the events of the next text; with the last text, those that end the reply."""
        for part in self._parser.push(delta.text):
            yield from self._write(part)
        if delta.finish_reason is None:
            return
        for part in self._parser.flush():
            yield from self._write(part)
        if self._open is None:
            yield from self._begin(_EMPTY_TEXT)
        yield from self._close()

    def end(self, delta: Delta) -> MessageEnd:
        """Return how the reply ended; `delta` was its last piece."""
        stop = delta.stop_reason if isinstance(delta.stop_reason, str) else None
        reason: StopReason = "end_turn"
        if delta.finish_reason == "length":
            reason = "max_tokens"
        elif self._has_calls:
            reason = "tool_use"
        elif stop is not None:
            reason = "stop_sequence"
        return MessageEnd(stop_reason=reason, stop_sequence=stop if reason == "stop_sequence" else None)

    def _write(self, part: OutputDelta) -> Iterator[PartEvent]:
        match part:
            case TextDelta(text=text):
                if not isinstance(self._open, TextPart):
                    yield from self._begin(_EMPTY_TEXT)
                yield self._delta(text, PartTextDelta(text=text))
            case ReasoningDelta(text=text):
                if not isinstance(self._open, ThinkingPart):
                    yield from self._begin(ThinkingPart(thinking="", signature=""))
                yield self._delta(text, PartThinkingDelta(thinking=text))
            case ToolCallDelta(arguments=text) if part.index == 0 or self._tool_use.is_parallel:
                self._has_calls = True
                if not isinstance(self._open, ToolUsePart) or self._call != part.index:
                    self._call = part.index
                    yield from self._begin(ToolUsePart(id=part.call_id or "", name=part.name or "", input={}))
                if text:
                    yield self._delta(text, PartJsonDelta(partial_json=text))

    def _begin(self, part: Part) -> Iterator[PartEvent]:
        yield from self._close()
        self._open, self._texts = part, []
        yield BlockStart(index=len(self.parts), content_block=part)

    def _delta(self, text: str, delta: PartTextDelta | PartJsonDelta | PartThinkingDelta) -> BlockDelta:
        self._texts.append(text)
        return BlockDelta(index=len(self.parts), delta=delta)

    def _close(self) -> Iterator[PartEvent]:
        index, text = len(self.parts), "".join(self._texts)
        match self._open:
            case None:
                return
            case TextPart():
                whole: Part = TextPart(text=text)
            case ThinkingPart():
                signature = hashlib.sha256(text.encode(errors="replace")).hexdigest()
                yield BlockDelta(index=index, delta=PartSignatureDelta(signature=signature))
                whole = ThinkingPart(thinking=text, signature=signature)
            case ToolUsePart(id=call_id, name=name):
                whole = ToolUsePart(id=call_id, name=name, input=_arguments(text))
        yield BlockStop(index=index)
        self.parts.append(whole)
        self._open = None


def _arguments(text: str) -> dict[str, object]:
    """Return the arguments of a call; none where their text is cut off, is no object or nested too deeply."""
    try:
        arguments = read_json(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}
