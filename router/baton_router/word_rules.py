"""Parameters that clients give in words and workers apply in tokens: bad words, the marks of thinking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.draw_rules import ThinkingBudget
from baton_core.requests.sampling_checks import TOKEN_ID_LIMIT
from baton_core.requests.sampling_params import SamplingParams
from baton_router.generation import TokenIds
from baton_router.request_limits import ReasoningMarkers
from baton_router.thinking_place import Thinking, find_thinking
from baton_router.tokenization import Tokenizer
from baton_router.validation import check_token_ids

UNLIMITED: Final = TOKEN_ID_LIMIT - 1
"""A budget of thought that no context holds."""


def encode_bad_words(words: Sequence[str], tokenizer: Tokenizer, vocab_size: int) -> tuple[TokenIds, ...]:
    """Return the tokens of each word, as it stands at the beginning of a text and behind a space.

    The second only where it begins with another token: there are tokenizers that write both alike.

    Raises:
        InvalidRequestError: a word is blank, or has a token that the model lacks.
    """
    encoded: list[TokenIds] = []
    for word in words:
        bare = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
        if not word.strip() or not bare:
            raise InvalidRequestError("bad_words", word, "words with at least one character that is no space")
        for token_ids in (bare, spaced):
            check_token_ids("bad_words", token_ids, vocab_size)
        encoded.append(bare)
        if spaced[0] != bare[0]:
            encoded.append(spaced)
    return tuple(encoded)


def read_thinking(
    params: SamplingParams, prompt_token_ids: TokenIds, tokenizer: Tokenizer, markers: ReasoningMarkers | None
) -> ThinkingBudget | None:
    """Return the budget of thought in tokens, None where workers need not follow the thinking.

    They follow it for a budget, and for a form of the output, which begins behind it. Where the prompt has
    ended the thinking, the form comes at once.

    Raises:
        InvalidRequestError: nobody knows how this model marks its thinking.
    """
    budget = params.thinking_token_budget
    if markers is None:
        if budget is None:
            return None
        allowed = "none: this router runs without --reasoning-parser"
        raise InvalidRequestError("thinking_token_budget", budget, allowed)
    if budget is None and params.structured_outputs is None:
        return None
    thinking = find_thinking(prompt_token_ids, tokenizer, markers)
    if thinking is Thinking.OVER and params.structured_outputs is not None:
        return None
    is_inside = thinking is Thinking.INSIDE
    start = () if is_inside else tokenizer.encode(markers.start, add_special_tokens=False)
    end = tokenizer.encode(markers.end, add_special_tokens=False)
    num_tokens = UNLIMITED if budget is None else budget
    return ThinkingBudget(num_tokens=num_tokens, start_token_ids=start, end_token_ids=end)
