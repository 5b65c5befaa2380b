"""Output parsers of one request: tool calls and reasoning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from baton_core.errors import InvalidConfigError
from baton_router.output_parsing.output_parser import OutputParser
from baton_router.output_parsing.reasoning import ReasoningParser, markers_of
from baton_router.output_parsing.registry import find_reasoning_parser, load_plugin, tool_parser_names
from baton_router.process.http_settings import HttpSettings
from baton_router.requests.request_limits import RequestLimits
from baton_router.requests.thinking import Thinking, find_thinking
from baton_router.text.chat_template import Conversation
from baton_router.text.prompts import TokenIds
from baton_router.text.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningUse:
    """The reasoning of one request's outputs."""

    parser: type[ReasoningParser]
    template_arguments: Mapping[str, Any]
    thinking: Thinking

    def make_parser(self, content: OutputParser) -> OutputParser:
        """Return the parser of one sequence; `content` parses what follows the reasoning."""
        if self.thinking is Thinking.OVER:
            return content
        is_inside = self.thinking is Thinking.INSIDE
        return self.parser(content, starts_inside=is_inside, template_kwargs=self.template_arguments)

    def make_counter(self, tokenizer: Tokenizer) -> ReasoningCounter:
        """Return the counter of one sequence's reasoning tokens."""
        return ReasoningCounter(
            tokenizer.token_bytes,
            self.parser.start_text,
            self.parser.thought_ends or (self.parser.end_text,),
            is_inside=self.thinking is Thinking.INSIDE,
            is_once=not self.parser.thought_ends,
        )


def find_reasoning(
    settings: HttpSettings, conversation: Conversation, prompt_token_ids: TokenIds, tokenizer: Tokenizer
) -> ReasoningUse | None:
    """Return the reasoning of the outputs of a conversation with these tokens; None without a parser."""
    if not settings.reasoning_parser:
        return None
    parser = find_reasoning_parser(settings.reasoning_parser)
    template_arguments = settings.answers.chat.complete(conversation).template_arguments
    thinking = find_thinking(
        prompt_token_ids, tokenizer, markers_of(parser), continues_text=conversation.continues_text
    )
    return ReasoningUse(parser=parser, template_arguments=template_arguments, thinking=thinking)


class ReasoningCounter:
    """Counts the tokens of one sequence that stand between the markers; those with a part of one do not."""

    def __init__(
        self,
        spell: Callable[[int], bytes],
        start: str,
        ends: Sequence[str],
        *,
        is_inside: bool,
        is_once: bool,
    ) -> None:
        """`spell`: returns the bytes of a token; `is_inside`: the sequence begins within the reasoning;
        `is_once`: what follows the first end is content, even if it spells out another start.
        """
        self.num_tokens = 0
        self._spell = spell
        self._start = start.encode()
        self._markers = (self._start, *(end.encode() for end in ends))
        self._most = max(map(len, self._markers)) - 1
        """Bytes that can be the beginning of a marker."""
        self._latest: list[tuple[bytes, bool]] = []
        """The latest tokens since the last marker, each with whether it was counted."""
        self._is_inside = is_inside
        self._is_once = is_once
        self._is_over = False

    def add(self, token_ids: Iterable[int]) -> None:
        """Take the next tokens."""
        for token_id in token_ids:
            self.num_tokens += self._is_inside
            if piece := self._spell(token_id):
                self._latest.append((piece, self._is_inside))
            text = b"".join(piece for piece, _ in self._latest)
            while found := self._first_marker(text):
                text = self._pass(text, *found)
            while self._latest and len(text) - len(self._latest[0][0]) >= self._most:
                text = text[len(self._latest.pop(0)[0]) :]

    def _first_marker(self, text: bytes) -> tuple[int, bytes] | None:
        found = ((text.find(marker), marker) for marker in self._markers)
        return min(((at, marker) for at, marker in found if at >= 0), default=None)

    def _pass(self, text: bytes, at: int, marker: bytes) -> bytes:
        """Leave the tokens of a marker at `at` out of the count; return the text after it."""
        left = len(text)
        while left > at:
            piece, is_counted = self._latest.pop()
            self.num_tokens -= is_counted
            left -= len(piece)
        self._is_over |= self._is_once and marker != self._start
        self._is_inside = marker == self._start and not self._is_over
        rest = text[at + len(marker) :]
        self._latest = [(rest, False)]
        return rest


def read_parsers(settings: HttpSettings, limits: RequestLimits) -> RequestLimits:
    """Load the plug-ins and check the names; returns `limits` with the markers of the reasoning parser.

    Raises:
        InvalidConfigError: no parser has a name, or a plug-in fails.
    """
    if settings.tool_parser_plugin:
        load_plugin(settings.tool_parser_plugin)
    if settings.reasoning_parser_plugin:
        load_plugin(settings.reasoning_parser_plugin, "--reasoning-parser-plugin")
    if settings.tool_call_parser and settings.tool_call_parser not in tool_parser_names():
        allowed = ", ".join(tool_parser_names())
        raise InvalidConfigError(f"--tool-call-parser is {settings.tool_call_parser!r}; allowed: {allowed}")
    if not settings.reasoning_parser:
        return limits
    return replace(limits, reasoning=markers_of(find_reasoning_parser(settings.reasoning_parser)))
