"""Output parsers of one request: tool calls and reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        texts = (self.parser.start_text, self.parser.end_text)
        start, end = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return ReasoningCounter(start, end, is_inside=self.thinking is Thinking.INSIDE)


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
    """Counts the tokens of one sequence that stand between the markers, of one token each or of several."""

    def __init__(self, start: TokenIds, end: TokenIds, *, is_inside: bool) -> None:
        """`is_inside`: the sequence begins within the reasoning."""
        self.num_tokens = 0
        self._markers = ((tuple(start), True), (tuple(end), False))
        self._num_kept = max(len(start), len(end))
        self._latest: TokenIds = ()
        """The latest tokens, since the last marker."""
        self._is_inside = is_inside

    def add(self, token_ids: Iterable[int]) -> None:
        """Take the next tokens."""
        for token_id in token_ids:
            self._latest = (*self._latest, token_id)[-self._num_kept :]
            self.num_tokens += self._is_inside
            for marker, is_start in self._markers:
                if self._latest[-len(marker) :] == marker:
                    self.num_tokens -= len(marker) * self._is_inside
                    self._is_inside, self._latest = is_start, ()
                    break


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
