"""Chooses the lane of a request in the tokenizing threads, by what it holds and before any of it is read."""

from __future__ import annotations

from collections.abc import Mapping

from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.embeds.given_embeds import EmbedsPrompt
from baton_router.structured_outputs.bounded_checks import is_checked_by_counting
from baton_router.text.chat_template import Conversation
from baton_router.text.large_texts import LARGE
from baton_router.text.prompts import AnyPrompt, TextPair
from baton_router.text.tokenizing_threads import Lane


def choose_lane(prompt: AnyPrompt | TextPair, grammar: object = None) -> Lane:
    """Return the lane for a prompt; `grammar` is the `structured_outputs` beside it, not checked yet."""
    if _is_long(prompt):
        return Lane.LONG
    is_checked = isinstance(grammar, StructuredOutputsParams) and not is_checked_by_counting(grammar)
    return Lane.GRAMMAR if is_checked else Lane.SHORT


def lane_of_tokens(num_tokens: int) -> Lane:
    """Return the lane for turning so many tokens into text."""
    return Lane.LONG if num_tokens >= LARGE else Lane.SHORT


def _is_long(prompt: AnyPrompt | TextPair) -> bool:
    match prompt:
        case str():
            return len(prompt) >= LARGE
        case TextPair(first=first, second=second):
            return len(first) + len(second) >= LARGE
        case Conversation():
            parts = (prompt.messages, prompt.tools, prompt.documents, prompt.template_arguments)
            return prompt.template is not None or _holds_large(parts)
        case EmbedsPrompt():
            return True
        case _:
            return False


def _holds_large(value: object) -> bool:
    """Return whether the strings and entries within a value of JSON are `LARGE` together."""
    left, num_left = [value], LARGE
    while left:
        match left.pop():
            case str(text):
                num_left -= len(text)
            case Mapping() as entries:
                num_left -= len(entries)
                left += entries.keys() if num_left > 0 else ()
                left += entries.values() if num_left > 0 else ()
            case list() | tuple() as entries:
                num_left -= len(entries)
                left += entries if num_left > 0 else ()
        if num_left <= 0:
            return True
    return False
