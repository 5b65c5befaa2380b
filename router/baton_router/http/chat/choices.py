"""Writes the choices of a chat: each sequence's text taken apart, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from msgspec import UNSET

from baton_core.requests.logprobs import PositionLogprobs
from baton_router.http.chat.replies import (
    ChatChoice,
    ChatChunkChoice,
    ChoiceLogprobs,
    FunctionCall,
    ReplyDelta,
    ReplyFunctionDelta,
    ReplyMessage,
    ReplyToolCallDelta,
    TokenLogprob,
    ToolCall,
    TopLogprob,
)
from baton_router.http.chat.tool_choice import ToolUse
from baton_router.http.json_pieces import as_list
from baton_router.http.reply_parts import LEAST, token_name
from baton_router.output_parsing.output_parser import (
    OutputDelta,
    OutputParser,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    collect,
)
from baton_router.requests.generation import Delta
from baton_router.text.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """Options of the choices of a call."""

    role: str
    echo: str
    """Text of the last message, which replies begin with."""
    tool_use: ToolUse
    has_reasoning: bool
    """True if a reasoning parser is configured."""
    hides_reasoning: bool
    has_logprobs: bool
    has_token_ids: bool
    names_ids: bool
    """True if tokens are named by their ids."""


class ChoiceWriter:
    """Writes one choice. `parser` reads its sequence; after its last piece the writer is spent."""

    def __init__(
        self, index: int, options: ChoiceOptions, parser: OutputParser, tokenizer: Tokenizer
    ) -> None:
        self._index = index
        self._options = options
        self._parser = parser
        self._tokenizer = tokenizer
        self._has_calls = False

    def whole(self, sequence: Delta) -> ChatChoice:
        """Return the choice of a whole sequence."""
        options = self._options
        output = collect(self._read(sequence))
        content = options.echo + (output.content or "")
        is_without = not content and (output.tool_calls or output.reasoning)
        message = ReplyMessage(role=options.role, content=None if is_without else content)
        if output.tool_calls:
            message.tool_calls = [
                ToolCall(id=call.call_id, function=FunctionCall(name=call.name, arguments=call.arguments))
                for call in output.tool_calls
            ]
        if options.has_reasoning:
            message.reasoning = message.reasoning_content = output.reasoning
        return ChatChoice(
            index=self._index,
            message=message,
            logprobs=self._logprobs(sequence),
            finish_reason=self._finish_reason(sequence),
            stop_reason=sequence.stop_reason,
            token_ids=self._token_ids(sequence),
        )

    def openings(self) -> list[ChatChunkChoice]:
        """Return the first chunks of a stream: the role, then the echoed text."""
        pieces = [ReplyDelta(role=self._options.role, content="")]
        if self._options.echo:
            pieces.append(ReplyDelta(content=self._options.echo))
        return [ChatChunkChoice(index=self._index, delta=piece) for piece in pieces]

    def piece(self, delta: Delta) -> ChatChunkChoice | None:
        """Return the new part of the choice; None where a client sees none of it."""
        piece = _piece(self._read(delta))
        choice = ChatChunkChoice(
            index=self._index,
            delta=piece,
            logprobs=self._logprobs(delta),
            finish_reason=self._finish_reason(delta),
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=UNSET if (token_ids := self._token_ids(delta)) is None else token_ids,
        )
        is_empty = piece == ReplyDelta() and choice.logprobs is None and choice.token_ids is UNSET
        return None if is_empty and choice.finish_reason is None else choice

    def _read(self, delta: Delta) -> list[OutputDelta]:
        deltas = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            deltas += self._parser.flush()
        shown = [part for part in deltas if self._is_shown(part)]
        self._has_calls |= any(isinstance(part, ToolCallDelta) for part in shown)
        return shown

    def _is_shown(self, part: OutputDelta) -> bool:
        match part:
            case ReasoningDelta():
                return not self._options.hides_reasoning
            case ToolCallDelta(index=index):
                return index == 0 or self._options.tool_use.is_parallel
            case TextDelta():
                return True

    def _finish_reason(self, delta: Delta) -> str | None:
        if delta.finish_reason is None:
            return None
        return self._options.tool_use.finish_reason(delta.finish_reason, has_calls=self._has_calls)

    def _logprobs(self, delta: Delta) -> ChoiceLogprobs | None:
        """Return no log-probabilities where they would reveal hidden reasoning."""
        if not self._options.has_logprobs or self._options.hides_reasoning or not delta.logprobs:
            return None
        return chat_logprobs(delta.logprobs, self._tokenizer, names_ids=self._options.names_ids)

    def _token_ids(self, delta: Delta) -> list[int] | None:
        is_shown = self._options.has_token_ids and not self._options.hides_reasoning
        return list(delta.token_ids) if is_shown else None


def _piece(deltas: Iterable[OutputDelta]) -> ReplyDelta:
    """Join deltas that came together: one text, one piece of reasoning, one piece of each call."""
    piece = ReplyDelta()
    calls: dict[int, ReplyToolCallDelta] = {}
    for delta in deltas:
        match delta:
            case TextDelta(text=text):
                piece.content = (piece.content or "") + text
            case ReasoningDelta(text=text):
                piece.reasoning = piece.reasoning_content = (piece.reasoning or "") + text
            case ToolCallDelta(index=index):
                call = calls.setdefault(index, ReplyToolCallDelta(index=index, function=ReplyFunctionDelta()))
                _extend(call, delta)
    piece.tool_calls = list(calls.values()) or None
    return piece


def _extend(call: ReplyToolCallDelta, delta: ToolCallDelta) -> None:
    if delta.call_id is not None:
        call.id, call.type = delta.call_id, "function"
    if delta.name is not None:
        call.function.name = delta.name
    call.function.arguments = (call.function.arguments or "") + delta.arguments


def chat_logprobs(
    entries: Collection[PositionLogprobs], tokenizer: Tokenizer, *, names_ids: bool
) -> ChoiceLogprobs:
    """Return the entries of a sequence's next tokens, to be written; `names_ids`: tokens go by their ids."""
    content = (_of_position(entry, tokenizer, names_ids) for entry in entries)
    return ChoiceLogprobs(content=as_list(content, len(entries)))


def _of_position(entry: PositionLogprobs, tokenizer: Tokenizer, names_ids: bool) -> TokenLogprob:
    own, *others = [
        TopLogprob(
            token=token_name(tokenizer, token_id, as_id=names_ids),
            logprob=max(logprob, LEAST),
            bytes=list(tokenizer.token_bytes(token_id)),
        )
        for token_id, logprob in zip(entry.token_ids, entry.logprobs, strict=True)
    ]
    return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=others)
