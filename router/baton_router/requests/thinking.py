"""Finds the state of a model's reasoning at the end of a prompt, and the budget of thinking tokens."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import TOKEN_ID_LIMIT
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_router.requests.request_limits import ReasoningMarkers
from baton_router.text.prompts import TokenIds
from baton_router.text.tokenization import Tokenizer

_log = logging.getLogger(__name__)

UNLIMITED: Final = TOKEN_ID_LIMIT - 1
"""A budget of thought that no context holds."""
_MAX_TURN_TOKENS: Final = 4096
"""Tokens at the end of a prompt in which the template may have begun the reasoning."""


class Thinking(StrEnum):
    """State of the reasoning when the output begins."""

    BEFORE = "before"
    """The model may begin it."""
    INSIDE = "inside"
    """The prompt has begun it, or the model does without a marker."""
    OVER = "over"
    """The prompt has ended it."""


def find_thinking(
    prompt_token_ids: TokenIds,
    tokenizer: Tokenizer,
    markers: ReasoningMarkers,
    *,
    continues_text: bool = False,
) -> Thinking:
    """Return the state of the reasoning after the prompt, by the markers in its last turn.

    A turn begins after an added token such as `<|im_start|>`, so markers that users write do not count.

    Args:
        continues_text: the output continues a message that has text, which is no reasoning without a marker.
    """
    most = len(prompt_token_ids) if continues_text else _MAX_TURN_TOKENS
    turn = _last_turn(prompt_token_ids[-most:], tokenizer, markers)
    start, end = turn.rfind(markers.start), turn.rfind(markers.end)
    if start > end:
        return Thinking.INSIDE
    if end >= 0 or continues_text:
        return Thinking.OVER
    return Thinking.INSIDE if markers.is_implied else Thinking.BEFORE


def _last_turn(tail: TokenIds, tokenizer: Tokenizer, markers: ReasoningMarkers) -> str:
    own = (markers.start, markers.end)
    for at in range(len(tail), 0, -1):
        added = tokenizer.added_text(tail[at - 1]) or ""
        if added not in own and added.strip():  # tokenizers add tokens for runs of spaces as well
            return tokenizer.decode(tail[at:], skip_special_tokens=False)
    return tokenizer.decode(tail, skip_special_tokens=False)


def warn_of_split_markers(tokenizer: Tokenizer, markers: ReasoningMarkers | None) -> None:
    """Log each marker that is several tokens, which may merge with text beside it and is not found then.

    Added tokens merge with nothing.
    """
    for text in (markers.start, markers.end) if markers else ():
        first, *others = tokenizer.encode(text, add_special_tokens=False)
        if others and not (tokenizer.added_text(first) and tokenizer.added_text(others[-1])):
            _log.warning(
                "%r, which marks reasoning, is %d tokens of this model: budgets and structured outputs may "
                "miss it",
                text,
                1 + len(others),
            )


def read_thinking(
    budget: int | None,
    prompt_token_ids: TokenIds,
    tokenizer: Tokenizer,
    markers: ReasoningMarkers | None,
    *,
    is_structured: bool,
    continues_text: bool = False,
) -> ThinkingBudget | None:
    """Return the budget of thought in tokens, None where workers need not follow the thinking.

    They follow it for a budget, and for structured output, which begins after it. Where the prompt has ended
    the thinking, structured output begins at once.

    Raises:
        InvalidRequestError: the markers of this model's reasoning are not known.
    """
    if markers is None:
        if budget is None:
            return None
        allowed = "none: this router runs without --reasoning-parser"
        raise InvalidRequestError("thinking_token_budget", budget, allowed)
    if budget is None and not is_structured:
        return None
    thinking = find_thinking(prompt_token_ids, tokenizer, markers, continues_text=continues_text)
    if thinking is Thinking.OVER and is_structured:
        return None
    is_inside = thinking is Thinking.INSIDE
    start = () if is_inside else tokenizer.encode(markers.start, add_special_tokens=False)
    end = tokenizer.encode(markers.end, add_special_tokens=False)
    num_tokens = UNLIMITED if budget is None else budget
    return ThinkingBudget(
        num_tokens=num_tokens, start_token_ids=start, end_token_ids=end, may_end=markers.may_end
    )
