"""Finds out of a prompt whether its answer begins within a thought."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from baton_router.generation import TokenIds
from baton_router.request_limits import ReasoningMarkers
from baton_router.tokenization import Tokenizer

_MAX_TURN_TOKENS: Final = 4096
"""How far back in a prompt it may have begun the thought."""


class Thinking(StrEnum):
    """Where the thinking stands when the answer begins."""

    BEFORE = "before"
    """The model may begin it."""
    INSIDE = "inside"
    """The prompt has begun it, or the model does without a marker."""
    OVER = "over"
    """The prompt has ended it."""


def find_thinking(prompt_token_ids: TokenIds, tokenizer: Tokenizer, markers: ReasoningMarkers) -> Thinking:
    """Look at the markers in what the prompt has of the answer's own turn.

    A turn begins behind a special token, so what users write of markers says nothing.
    """
    turn = _last_turn(prompt_token_ids, tokenizer, markers)
    start, end = turn.rfind(markers.start), turn.rfind(markers.end)
    if start > end:
        return Thinking.INSIDE
    if end >= 0:
        return Thinking.OVER
    return Thinking.INSIDE if markers.is_implied else Thinking.BEFORE


def _last_turn(prompt_token_ids: TokenIds, tokenizer: Tokenizer, markers: ReasoningMarkers) -> str:
    own = (markers.start, markers.end)
    tail = prompt_token_ids[-_MAX_TURN_TOKENS:]
    for at in range(len(tail), 0, -1):
        is_special = not tokenizer.is_decoded(tail[at - 1], skip_special_tokens=True)
        if is_special and tokenizer.added_text(tail[at - 1]) not in own:
            return tokenizer.decode(tail[at:], skip_special_tokens=False)
    return tokenizer.decode(tail, skip_special_tokens=False)
