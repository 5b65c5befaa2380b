"""Writes the items of one response: as events while they come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Final

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

RESPONSE_PREFIX: Final = "resp_"
WriteLogprobs = Callable[[Collection[PositionLogprobs]], list[TokenLogprob]]


class WaitingTokens:
    """The tokens whose text no item has yet, with their entries.

    A part of the output has the tokens whose bytes it is made of. Those between parts are of markers, and of
    calls whose arguments are written in another way.
    """

    def __init__(self) -> None:
        self._tokens: list[tuple[bytes, list[TokenLogprob]]] = []
        """The bytes of each token that are left, and its entry until that is taken."""
        self._bytes = b""

    def add(self, entries: Iterable[TokenLogprob]) -> None:
        tokens = [(bytes(entry.bytes or ()), [entry]) for entry in entries]
        self._tokens += tokens
        self._bytes += b"".join([content for content, _ in tokens])

    def take(self, text: str) -> list[TokenLogprob] | None:
        """Forget all tokens up to the end of a text; returns its entries, or None if it is not found."""
        content = text.encode()
        start = self._find(content)
        if start < 0:
            return None
        end = start + len(content)
        taken: list[TokenLogprob] = []
        at = num_tokens = 0
        token = b""
        for token, entry in self._tokens:
            if at >= end:
                break
            at += len(token)
            num_tokens += 1
            if at > start:
                taken += entry
        self._tokens[:num_tokens] = [(token[end - at :], [])] if at > end else []
        self._bytes = self._bytes[end:]
        return taken

    def take_all(self) -> list[TokenLogprob]:
        """Forget all tokens; returns their entries."""
        taken = [each for _, entry in self._tokens for each in entry]
        self._tokens, self._bytes = [], b""
        return taken

    def _find(self, content: bytes) -> int:
        """Return where a text begins, rather with a token than within one; -1 if nowhere."""
        start = 0
        for token, _ in self._tokens:
            for at in (start, start + len(token) - len(token.lstrip())):
                if self._bytes.startswith(content, at):
                    return at
            start += len(token)
        return self._bytes.find(content)


class ItemWriter:
    """Takes one sequence apart; after its last piece the writer is spent, and `items` are whole."""

    def __init__(
        self,
        parser: OutputParser,
        tool_use: ToolUse,
        write_logprobs: WriteLogprobs,
        *,
        response_id: str,
        names: Mapping[str, tuple[str | None, str]],
        hides_reasoning: bool,
    ) -> None:
        """`names`: the namespace and the name of functions, by the names that the model calls."""
        self.items: list[OutputItem] = []
        """The items that are whole."""
        self._parser = parser
        self._tool_use = tool_use
        self._write_logprobs = write_logprobs
        self._response_id = response_id
        self._numbers = count()
        self._names = names
        self._hides_reasoning = hides_reasoning
        self._open: OutputItem | None = None
        self._call = -1
        """Number of the call that is open."""
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        """Log-probabilities of the open message."""
        self._waiting = WaitingTokens()

    def piece(self, delta: Delta) -> Iterator[ItemEvent]:
        """Yield the events of the next text; with the last text, those that end the last item."""
        self._waiting.add(self._write_logprobs(delta.logprobs))
        for part in self._parser.push(delta.text):
            yield from self._write(part)
        if delta.finish_reason is None:
            return
        for part in self._parser.flush():
            yield from self._write(part)
        if self._open is None and not self.items:
            yield from self._begin(self._new_message())
        if isinstance(self._open, MessageItem) and (logprobs := self._waiting.take_all()):
            yield self._text_piece("", logprobs)
        yield from self._close("incomplete" if delta.finish_reason == "length" else "completed")

    def _write(self, part: OutputDelta) -> Iterator[ItemEvent]:
        match part:
            case TextDelta(text=text):
                if not isinstance(self._open, MessageItem):
                    yield from self._begin(self._new_message())
                logprobs = self._waiting.take(text)
                yield self._text_piece(text, self._waiting.take_all() if logprobs is None else logprobs)
            case ReasoningDelta(text=text):
                self._waiting.take(text)
                if self._hides_reasoning:
                    return
                if not isinstance(self._open, ReasoningItem):
                    yield from self._begin(self._new_reasoning())
                self._texts.append(text)
                yield ReasoningPiece(**self._at(), delta=text)
            case ToolCallDelta() if part.index == 0 or self._tool_use.is_parallel:
                self._waiting.take(part.arguments)
                if not isinstance(self._open, FunctionCallItem) or self._call != part.index:
                    self._call = part.index
                    yield from self._begin(self._new_call(part))
                if part.arguments:
                    self._texts.append(part.arguments)
                    yield ArgumentsPiece(**self._at(), delta=part.arguments)

    def _new_call(self, part: ToolCallDelta) -> FunctionCallItem:
        called = part.name or ""
        namespace, name = self._names.get(called, (None, called))
        return FunctionCallItem(
            id=self._new_id("fc"),
            status="in_progress",
            call_id=part.call_id or "",
            name=name,
            namespace=namespace,
            arguments="",
        )

    def _text_piece(self, text: str, logprobs: list[TokenLogprob]) -> TextPiece:
        self._texts.append(text)
        self._logprobs += logprobs
        return TextPiece(**self._at(), delta=text, logprobs=logprobs)

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

    def _new_message(self) -> MessageItem:
        return MessageItem(id=self._new_id("msg"), status="in_progress", content=[])

    def _new_reasoning(self) -> ReasoningItem:
        return ReasoningItem(id=self._new_id("rs"), status="in_progress", content=[])

    def _new_id(self, kind: str) -> str:
        """Return an id that leads back to the response, as `response_of` reads it."""
        return f"{kind}_{self._response_id.removeprefix(RESPONSE_PREFIX)}-{next(self._numbers)}"


def response_of(item_id: str) -> str:
    """Return the id of the response whose output has an item, if any."""
    return RESPONSE_PREFIX + item_id.partition("_")[2].rpartition("-")[0]
