"""Writes the items of one response: as events while they come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from baton_core.requests.logprobs import PositionLogprobs
from baton_router.http.chat.replies import TokenLogprob
from baton_router.http.chat.tool_choice import ToolUse
from baton_router.http.responses.replies import (
    ArgumentsDone,
    ArgumentsPiece,
    FunctionCallItem,
    ItemAdded,
    ItemDone,
    ItemEvent,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    PartAdded,
    PartDone,
    ReasoningDone,
    ReasoningItem,
    ReasoningPiece,
    ReasoningText,
    TextDone,
    TextPiece,
)
from baton_router.output_parsing.output_parser import (
    OutputDelta,
    OutputParser,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from baton_router.requests.generation import Delta

WriteLogprobs = Callable[[Collection[PositionLogprobs]], list[TokenLogprob]]


class ItemWriter:
    """Takes one sequence apart; after its last piece the writer is spent, and `items` are whole."""

    def __init__(
        self, parser: OutputParser, tool_use: ToolUse, write_logprobs: WriteLogprobs, *, hides_reasoning: bool
    ) -> None:
        self.items: list[OutputItem] = []
        """The items that are whole."""
        self._parser = parser
        self._tool_use = tool_use
        self._write_logprobs = write_logprobs
        self._hides_reasoning = hides_reasoning
        self._open: OutputItem | None = None
        self._call = -1
        """Number of the call that is open."""
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        """Log-probabilities of the open message."""
        self._waiting: list[TokenLogprob] = []
        """Log-probabilities of tokens whose text is not written yet."""

    def piece(self, delta: Delta) -> Iterator[ItemEvent]:
        """Yield the events of the next text; with the last text, those that end the last item."""
        self._waiting += self._write_logprobs(delta.logprobs)
        for part in self._parser.push(delta.text):
            yield from self._write(part)
        if delta.finish_reason is None:
            return
        for part in self._parser.flush():
            yield from self._write(part)
        if self._open is None and not self.items:
            yield from self._begin(_new_message())
        if self._waiting and isinstance(self._open, MessageItem):
            yield from self._write(TextDelta(text=""))
        yield from self._close("incomplete" if delta.finish_reason == "length" else "completed")

    def _write(self, part: OutputDelta) -> Iterator[ItemEvent]:
        match part:
            case TextDelta(text=text):
                if not isinstance(self._open, MessageItem):
                    yield from self._begin(_new_message())
                logprobs, self._waiting = self._waiting, []
                self._logprobs += logprobs
                self._texts.append(text)
                yield TextPiece(**self._at(), delta=text, logprobs=logprobs)
            case ReasoningDelta(text=text):
                self._waiting = []
                if self._hides_reasoning:
                    return
                if not isinstance(self._open, ReasoningItem):
                    yield from self._begin(ReasoningItem(id=_name("rs"), status="in_progress", content=[]))
                self._texts.append(text)
                yield ReasoningPiece(**self._at(), delta=text)
            case ToolCallDelta() if part.index == 0 or self._tool_use.is_parallel:
                self._waiting = []
                if not isinstance(self._open, FunctionCallItem) or self._call != part.index:
                    self._call = part.index
                    yield from self._begin(_new_call(part))
                if part.arguments:
                    self._texts.append(part.arguments)
                    yield ArgumentsPiece(**self._at(), delta=part.arguments)

    def _begin(self, item: OutputItem) -> Iterator[ItemEvent]:
        yield from self._close("completed")
        self._open = item
        self._texts = []
        self._logprobs = []
        yield ItemAdded(output_index=len(self.items), item=item)
        if isinstance(item, MessageItem):
            yield PartAdded(**self._at(), part=OutputText(text=""))
        elif isinstance(item, ReasoningItem):
            yield PartAdded(**self._at(), part=ReasoningText(text=""))

    def _close(self, status: ItemStatus) -> Iterator[ItemEvent]:
        text, item, at = "".join(self._texts), self._open, self._at()
        match item:
            case None:
                return
            case MessageItem():
                part = OutputText(text=text, logprobs=self._logprobs)
                yield TextDone(**at, text=text, logprobs=self._logprobs)
                yield PartDone(**at, part=part)
                whole: OutputItem = replace(item, status=status, content=[part])
            case ReasoningItem():
                reasoning = ReasoningText(text=text)
                yield ReasoningDone(**at, text=text)
                yield PartDone(**at, part=reasoning)
                whole = replace(item, status=status, content=[reasoning])
            case FunctionCallItem():
                yield ArgumentsDone(**at, name=item.name, arguments=text)
                whole = replace(item, status=status, arguments=text)
        yield ItemDone(output_index=len(self.items), item=whole)
        self.items.append(whole)
        self._open = None

    def _at(self) -> dict[str, Any]:
        """Return the place of the open item."""
        return {"item_id": self._open.id if self._open else "", "output_index": len(self.items)}


def _name(kind: str) -> str:
    return f"{kind}_{uuid4().hex}"


def _new_message() -> MessageItem:
    return MessageItem(id=_name("msg"), status="in_progress", content=[])


def _new_call(part: ToolCallDelta) -> FunctionCallItem:
    return FunctionCallItem(
        id=_name("fc"),
        status="in_progress",
        call_id=part.call_id or "",
        name=part.name or "",
        arguments="",
    )
