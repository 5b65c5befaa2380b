"""Writes the parts of one reply: as events while they come, or whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

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
    """Takes one sequence apart; after its last piece the writer is spent."""

    def __init__(self, parser: OutputParser, tool_use: ToolUse) -> None:
        self._parser = parser
        self._tool_use = tool_use
        self._num_parts = 0
        self._open: Part | None = None
        self._call = -1
        """Number of the call that is open."""
        self._digest = hashlib.sha256()
        self._has_calls = False

    def piece(self, delta: Delta) -> Iterator[PartEvent]:
        """Yield the events of the next text; with the last text, those that end the reply."""
        for part in self._parser.push(delta.text):
            yield from self._write(part)
        if delta.finish_reason is None:
            return
        for part in self._parser.flush():
            yield from self._write(part)
        if not self._num_parts:
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
                yield self._delta(PartTextDelta(text=text))
            case ReasoningDelta(text=text):
                if not isinstance(self._open, ThinkingPart):
                    self._digest = hashlib.sha256()
                    yield from self._begin(ThinkingPart(thinking="", signature=""))
                self._digest.update(text.encode(errors="replace"))
                yield self._delta(PartThinkingDelta(thinking=text))
            case ToolCallDelta() if part.index == 0 or self._tool_use.is_parallel:
                self._has_calls = True
                if not isinstance(self._open, ToolUsePart) or self._call != part.index:
                    self._call = part.index
                    yield from self._begin(ToolUsePart(id=part.call_id or "", name=part.name or "", input={}))
                if part.arguments:
                    yield self._delta(PartJsonDelta(partial_json=part.arguments))

    def _begin(self, part: Part) -> Iterator[PartEvent]:
        yield from self._close()
        self._open = part
        self._num_parts += 1
        yield BlockStart(index=self._num_parts - 1, content_block=part)

    def _close(self) -> Iterator[PartEvent]:
        if self._open is None:
            return
        if isinstance(self._open, ThinkingPart):
            yield self._delta(PartSignatureDelta(signature=self._digest.hexdigest()))
        self._open = None
        yield BlockStop(index=self._num_parts - 1)

    def _delta(
        self, delta: PartTextDelta | PartJsonDelta | PartThinkingDelta | PartSignatureDelta
    ) -> BlockDelta:
        return BlockDelta(index=self._num_parts - 1, delta=delta)


def collect_parts(events: Iterable[PartEvent]) -> list[Part]:
    """Return the parts that events make together."""
    parts: list[Part] = []
    texts: list[str] = []
    signature = ""
    for event in events:
        match event:
            case BlockStart(content_block=part):
                parts.append(part)
                texts = []
            case BlockDelta(delta=PartSignatureDelta(signature=signature)):
                pass
            case BlockDelta(delta=delta):
                texts.append(_text_of(delta))
            case BlockStop():
                parts[-1] = _whole(parts[-1], "".join(texts), signature)
    return parts


def _text_of(delta: PartTextDelta | PartJsonDelta | PartThinkingDelta | PartSignatureDelta) -> str:
    match delta:
        case PartTextDelta(text=text) | PartThinkingDelta(thinking=text) | PartJsonDelta(partial_json=text):
            return text
        case _:
            return ""


def _whole(part: Part, text: str, signature: str) -> Part:
    match part:
        case TextPart():
            return TextPart(text=text)
        case ThinkingPart():
            return ThinkingPart(thinking=text, signature=signature)
        case ToolUsePart():
            return ToolUsePart(id=part.id, name=part.name, input=_arguments(text))


def _arguments(text: str) -> dict[str, object]:
    """Return the arguments of a call; none where their text is cut off, is no object or nested too deeply."""
    try:
        arguments = read_json(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}
