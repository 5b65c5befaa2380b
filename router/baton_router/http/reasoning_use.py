"""How a model that thinks before it answers marks its thoughts, and what that means for one request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from baton_router.answers.answer import AnswerParser, PlainParser, ReasoningDelta
from baton_router.answers.reasoning import ReasoningParser
from baton_router.answers.registry import find_reasoning_parser
from baton_router.generation import TokenIds
from baton_router.request_limits import ReasoningMarkers
from baton_router.thinking_place import Thinking, find_thinking
from baton_router.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningUse:
    """What is known of the thoughts of one request's answers."""

    parser: type[ReasoningParser]
    template_arguments: Mapping[str, Any]
    thinking: Thinking

    def make_parser(self, answer: AnswerParser) -> AnswerParser:
        """Return what reads one sequence; `answer` takes what follows the thoughts."""
        if self.thinking is Thinking.OVER:
            return answer
        is_inside = self.thinking is Thinking.INSIDE
        return self.parser(answer, starts_inside=is_inside, template_kwargs=self.template_arguments)

    def make_counter(self, tokenizer: Tokenizer) -> ReasoningCounter | None:
        """Return what counts one sequence's tokens of thought; None where no single tokens mark them."""
        texts = (self.parser.start_text, self.parser.end_text)
        start, end = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        if len(start) != 1 or len(end) != 1:
            return None
        return ReasoningCounter(start[0], end[0], is_inside=self.thinking is Thinking.INSIDE)


def find_reasoning(
    name: str, template_arguments: Mapping[str, Any], prompt_token_ids: TokenIds, tokenizer: Tokenizer
) -> ReasoningUse | None:
    """Return how answers to a prompt are read; None without `--reasoning-parser`, whose value `name` is."""
    if not name:
        return None
    parser = find_reasoning_parser(name)
    thinking = find_thinking(prompt_token_ids, tokenizer, markers_of(parser))
    return ReasoningUse(parser=parser, template_arguments=template_arguments, thinking=thinking)


def markers_of(parser: type[ReasoningParser]) -> ReasoningMarkers:
    """Return what the parser looks for; a start is implied where it takes any text for a thought."""
    deltas = parser(PlainParser()).push(".")
    is_implied = any(isinstance(delta, ReasoningDelta) for delta in deltas)
    return ReasoningMarkers(start=parser.start_text, end=parser.end_text, is_implied=is_implied)


class ReasoningCounter:
    """Counts the tokens of one sequence that stand between the markers."""

    def __init__(self, start_token_id: int, end_token_id: int, *, is_inside: bool) -> None:
        """`is_inside`: the sequence begins within a thought."""
        self.num_tokens = 0
        self._start = start_token_id
        self._end = end_token_id
        self._is_inside = is_inside

    def add(self, token_ids: Iterable[int]) -> None:
        """Take the next tokens."""
        for token_id in token_ids:
            if token_id in (self._start, self._end):
                self._is_inside = token_id == self._start
            else:
                self.num_tokens += self._is_inside
