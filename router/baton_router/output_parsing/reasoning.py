"""Separates a model's reasoning from its reply, and passes the reply on to another parser.

The reasoning stands between two markers. Chat templates may put the first one into the prompt already, so
the text may begin inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from baton_router.output_parsing.output_parser import OutputDelta, OutputParser, PlainParser, ReasoningDelta
from baton_router.output_parsing.tool_parser import Markers
from baton_router.requests.request_limits import ReasoningMarkers


class ReasoningParser(OutputParser):
    """Base of the reasoning parsers: a subclass defines where the text begins.

    A second opening marker is reasoning, or content, like any other text: only the first words of an answer
    can open it. What is held back is at most a marker, and white space before the first word.
    """

    start_text: ClassVar[str] = "<think>"
    end_text: ClassVar[str] = "</think>"
    may_end: ClassVar[bool] = False
    """True if outputs may end before `end_text`, as with a call in a message of its own."""
    always_starts_inside: ClassVar[bool] = False
    thought_ends: ClassVar[tuple[str, ...]] = ()
    """Texts that end one of several thoughts; empty where `end_text` alone does."""

    def __init__(
        self,
        answer: OutputParser,
        *,
        starts_inside: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        """`answer`: takes what follows the reasoning; `starts_inside`: the prompt has opened it."""
        self._answer = answer
        self._starts_inside = starts_inside or self.always_starts_inside
        self._start = Markers(self.start_text)
        self._end = Markers(self.end_text)
        self._state: Callable[[str], list[OutputDelta]] = self._opening
        self._blank: list[str] = []
        self._held = ""

    def push(self, text: str) -> list[OutputDelta]:
        text, self._held = self._held + text, ""
        return self._state(text)

    def flush(self) -> list[OutputDelta]:
        text, self._held = "".join(self._blank) + self._held, ""
        is_reasoning = self._state == self._inside or (self._state == self._opening and self._starts_inside)
        deltas = _reasoning(text) if is_reasoning else self._answer.push(text)
        return [*deltas, *self._answer.flush()]

    def _opening(self, text: str) -> list[OutputDelta]:
        word = text.lstrip()
        self._blank.append(text[: len(text) - len(word)])
        if not word:
            return []
        begins, marker = self._start.match(word, 0)
        if begins and not marker:
            self._held = word
            return []
        if not marker:
            word = "".join(self._blank) + word
        self._blank.clear()
        self._state = self._inside if marker or self._starts_inside else self._outside
        return self._state(word[len(marker or "") :])

    def _inside(self, text: str) -> list[OutputDelta]:
        end, marker = self._end.find(text, 0)
        if not marker:
            self._held = text[end:]
            return _reasoning(text[:end])
        self._state = self._outside
        return [*_reasoning(text[:end]), *self._outside(text[end + len(marker) :])]

    def _outside(self, text: str) -> list[OutputDelta]:
        return self._answer.push(text)


class DeepSeekR1ReasoningParser(ReasoningParser):
    """The model may leave the opening marker out."""

    always_starts_inside = True


class Qwen3ReasoningParser(ReasoningParser):
    """Thinks between both markers, or not at all with the template's argument `enable_thinking` false."""

    def __init__(
        self,
        answer: OutputParser,
        *,
        starts_inside: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(answer, starts_inside=starts_inside, template_kwargs=template_kwargs)
        if template_kwargs and template_kwargs.get("enable_thinking") is False:
            self._state = self._outside


def _reasoning(text: str) -> list[OutputDelta]:
    return [ReasoningDelta(text=text)] if text else []


def markers_of(parser: type[ReasoningParser]) -> ReasoningMarkers:
    """Return the parser's markers; a start is implied where it takes any text for reasoning."""
    deltas = parser(PlainParser()).push(".")
    is_implied = any(isinstance(delta, ReasoningDelta) for delta in deltas)
    return ReasoningMarkers(
        start=parser.start_text, end=parser.end_text, is_implied=is_implied, may_end=parser.may_end
    )
