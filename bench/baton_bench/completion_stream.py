"""Reads a server's stream of a completion or a chat into an answer. Pure: the time is an argument."""

from __future__ import annotations

from bisect import bisect
from typing import Any, Final

import msgspec

from baton_bench.answers import Answer

_DONE: Final = b"[DONE]"
_MAX_ERROR_BYTES: Final = 64 * 2**10
_MAX_SHOWN: Final = 300


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class _Refusal(msgspec.Struct):
    error: Any = None
    detail: Any = None
    message: Any = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


class CompletionStream:
    """One answer. An event counts as tokens if it brings text, or in a completion if it is not the end.

    An end without text, and an event without text of a chat, may stand for a token (as EOS does) or for none.
    It counts if the server reports more tokens than there are events that do; the role of a chat never does.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._events = EventParser()
        self._body = b""
        self._has_event = self._is_complete = False
        self._silent_s: list[float] = []
        """Times of the events that may stand for a token."""

    def take(self, data: bytes, now_s: float) -> None:
        """Read a piece of the body; mutates the answer.

        Raises:
            ValueError: it is no stream of such events, or reports an error.
        """
        if len(self._body) < _MAX_ERROR_BYTES and not self._answer.times_s:
            self._body += data
        for event in self._events.feed(data):
            self._has_event = True
            if event == _DONE:
                self._is_complete = True
                continue
            try:
                chunk = _CHUNK.decode(event)
            except msgspec.DecodeError as error:
                raise ValueError(f"an event is no chunk of an answer: {error}") from None
            if chunk.error is not None:
                raise ValueError(_message(chunk.error))
            if chunk.usage is not None:
                self._answer.reported_prompt_tokens = chunk.usage.prompt_tokens
                self._answer.reported_tokens = chunk.usage.completion_tokens
            for choice in chunk.choices or ():
                self._take_choice(choice, now_s)

    def end(self, status: int) -> None:
        """The body has ended.

        Raises:
            ValueError: the server refused the request, or the answer is not whole.
        """
        if status != 200:
            raise ValueError(f"HTTP {status}: {_refusal(self._body)}")
        if not self._is_complete:
            raise ValueError(
                "the stream ended before the answer did"
                if self._has_event
                else f"the answer is no stream of events but {_shown(self._body)}"
            )
        self._count_silent()

    def _take_choice(self, choice: _Choice, now_s: float) -> None:
        if choice.finish_reason is not None:
            self._is_complete = True
        text, delta = _text(choice), choice.delta
        is_token = choice.finish_reason is None if delta is None else bool(delta.tool_calls)
        if text or is_token:
            self._answer.times_s.append(now_s)
            self._answer.texts.append(text)
        elif delta is None or not delta.role:
            self._silent_s.append(now_s)

    def _count_silent(self) -> None:
        answer = self._answer
        num_missing = max(0, answer.num_tokens - len(answer.times_s))
        for time_s in self._silent_s[:num_missing]:
            place = bisect(answer.times_s, time_s)
            answer.times_s.insert(place, time_s)
            answer.texts.insert(place, "")


def _text(choice: _Choice) -> str:
    delta = choice.delta
    if delta is None:
        return choice.text or ""
    return (delta.reasoning_content or delta.reasoning or "") + (delta.content or "")


def _refusal(body: bytes) -> str:
    try:
        refusal = msgspec.json.decode(body, type=_Refusal)
    except msgspec.DecodeError:
        return body.decode(errors="replace")[:_MAX_SHOWN].strip() or "without a message"
    return _message(refusal.error or refusal.detail or refusal.message or body.decode(errors="replace"))


def _shown(body: bytes) -> str:
    return repr(body.decode(errors="replace")[:_MAX_SHOWN]) if body else "empty"


def _message(error: Any) -> str:
    text = error.get("message", error) if isinstance(error, dict) else error
    return str(text)[:_MAX_SHOWN]


MAX_EVENT_BYTES: Final = 4 * 2**20


class EventParser:
    """Parses the events of one stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes as they come; return the data of each event that they complete.

        Raises:
            ValueError: an event is longer than 4 MiB.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        events = []
        for line in lines:
            content = line.removesuffix(b"\r")
            if content.startswith(b"data:"):
                self._data.append(content[5:].removeprefix(b" "))
            elif not content and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events
