"""Writes the choices of a chat: each sequence's text taken apart, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from baton_router.answers.answer import (
    AnswerDelta,
    AnswerParser,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    collect,
)
from baton_router.generation import Delta
from baton_router.http.chat_logprobs import chat_logprobs
from baton_router.http.chat_replies import (
    AnswerMessage,
    AnswerPiece,
    ChatChoice,
    ChatChunkChoice,
    ChoiceLogprobs,
    FunctionCall,
    FunctionCallPiece,
    ToolCall,
    ToolCallPiece,
)
from baton_router.http.tool_choice import ToolUse
from baton_router.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceForm:
    """What the choices of a call show."""

    role: str
    echo: str
    """Text of the last message, which answers begin with."""
    tool_use: ToolUse
    has_reasoning: bool
    """Whether a reasoning parser finds any."""
    hides_reasoning: bool
    has_logprobs: bool
    has_token_ids: bool
    names_ids: bool
    """Whether tokens are named by their ids."""


class ChoiceWriter:
    """Writes one choice. `parser` reads its sequence; after its last piece the writer is spent."""

    def __init__(self, index: int, form: ChoiceForm, parser: AnswerParser, tokenizer: Tokenizer) -> None:
        self._index = index
        self._form = form
        self._parser = parser
        self._tokenizer = tokenizer
        self._has_calls = False

    def whole(self, sequence: Delta) -> ChatChoice:
        """Return the choice of a sequence that is there from its first token to its end."""
        form = self._form
        answer = collect(self._read(sequence))
        content = form.echo + (answer.content or "")
        is_without = not content and (answer.tool_calls or answer.reasoning)
        message = AnswerMessage(role=form.role, content=None if is_without else content)
        if answer.tool_calls:
            message.tool_calls = [
                ToolCall(id=call.call_id, function=FunctionCall(name=call.name, arguments=call.arguments))
                for call in answer.tool_calls
            ]
        if form.has_reasoning:
            message.reasoning = message.reasoning_content = answer.reasoning
        return ChatChoice(
            index=self._index,
            message=message,
            logprobs=self._logprobs(sequence),
            finish_reason=self._finish_reason(sequence),
            stop_reason=sequence.stop_reason,
            token_ids=self._token_ids(sequence),
        )

    def openings(self) -> list[ChatChunkChoice]:
        """Return what a stream tells before anything new: the role, then what is echoed."""
        pieces = [AnswerPiece(role=self._form.role, content="")]
        if self._form.echo:
            pieces.append(AnswerPiece(content=self._form.echo))
        return [ChatChunkChoice(index=self._index, delta=piece) for piece in pieces]

    def piece(self, delta: Delta) -> ChatChunkChoice | None:
        """Return what is new; None where that is nothing that a client sees."""
        piece = _piece(self._read(delta))
        choice = ChatChunkChoice(
            index=self._index,
            delta=piece,
            logprobs=self._logprobs(delta),
            finish_reason=self._finish_reason(delta),
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=self._token_ids(delta),
        )
        is_empty = piece == AnswerPiece() and choice.logprobs is None and choice.token_ids is UNSET
        return None if is_empty and choice.finish_reason is None else choice

    def _read(self, delta: Delta) -> list[AnswerDelta]:
        deltas = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            deltas += self._parser.flush()
        shown = [part for part in deltas if self._is_shown(part)]
        self._has_calls |= any(isinstance(part, ToolCallDelta) for part in shown)
        return shown

    def _is_shown(self, part: AnswerDelta) -> bool:
        match part:
            case ReasoningDelta():
                return not self._form.hides_reasoning
            case ToolCallDelta(index=index):
                return index == 0 or self._form.tool_use.is_parallel
            case TextDelta():
                return True

    def _finish_reason(self, delta: Delta) -> str | None:
        if delta.finish_reason is None:
            return None
        return self._form.tool_use.finish_reason(delta.finish_reason, has_calls=self._has_calls)

    def _logprobs(self, delta: Delta) -> ChoiceLogprobs | None:
        """Tokens would tell of thoughts that are to be hidden."""
        if not self._form.has_logprobs or self._form.hides_reasoning or not delta.logprobs:
            return None
        return chat_logprobs(delta.logprobs, self._tokenizer, names_ids=self._form.names_ids)

    def _token_ids(self, delta: Delta) -> list[int] | UnsetType:
        is_shown = self._form.has_token_ids and not self._form.hides_reasoning
        return list(delta.token_ids) if is_shown else UNSET


def _piece(deltas: Iterable[AnswerDelta]) -> AnswerPiece:
    """Join what came at once: one text, one piece of reasoning, one piece of each call."""
    piece = AnswerPiece()
    calls: dict[int, ToolCallPiece] = {}
    for delta in deltas:
        match delta:
            case TextDelta(text=text):
                piece.content = (piece.content or "") + text
            case ReasoningDelta(text=text):
                piece.reasoning = piece.reasoning_content = (piece.reasoning or "") + text
            case ToolCallDelta(index=index):
                call = calls.setdefault(index, ToolCallPiece(index=index, function=FunctionCallPiece()))
                _extend(call, delta)
    piece.tool_calls = list(calls.values()) or None
    return piece


def _extend(call: ToolCallPiece, delta: ToolCallDelta) -> None:
    if delta.call_id is not None:
        call.id, call.type = delta.call_id, "function"
    if delta.name is not None:
        call.function.name = delta.name
    call.function.arguments = (call.function.arguments or "") + delta.arguments
