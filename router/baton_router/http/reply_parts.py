"""Parts of replies: names of tokens, log-probabilities of a prompt in vLLM's format, and token usage."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

import msgspec

from baton_core.requests.logprobs import PositionLogprobs
from baton_router.http.json_pieces import lazily
from baton_router.requests.generation import Finished
from baton_router.text.characters import TokenTexts
from baton_router.text.tokenization import Tokenizer

LEAST: Final = -9999.0
"""Log-probability of a probability of 0: JSON has no infinity."""


def token_name(tokenizer: Tokenizer, token_id: int, *, as_id: bool = False) -> str:
    """Return the token's text, or OpenAI's `bytes:\\xe2\\x80` where that is no whole character.

    With `as_id` it is `token_id:17`.
    """
    if as_id:
        return f"token_id:{token_id}"
    content = tokenizer.token_bytes(token_id)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


class Logprob(msgspec.Struct, kw_only=True):
    """Log-probability of one token at one position."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, Logprob] | None]
"""One entry for each token by the ids of the tokens; none for the first, which nothing comes before."""


def prompt_logprobs_of(entries: Iterable[PositionLogprobs], tokenizer: Tokenizer) -> PromptLogprobs:
    """Return the entries of a whole prompt, to be written; `entries` begin with its second token."""
    texts = TokenTexts(tokenizer.token_text, tokenizer.token_bytes)
    return lazily(chain((None,), (_by_token(entry, texts) for entry in entries)))


def _by_token(entry: PositionLogprobs, texts: TokenTexts) -> dict[str, Logprob]:
    rows = zip(entry.token_ids, entry.logprobs, entry.ranks, texts.read(entry), strict=True)
    return {
        str(token_id): Logprob(logprob=max(logprob, LEAST), rank=rank, decoded_token=text)
        for token_id, logprob, rank, text in rows
    }


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the prompt tokens."""

    cached_tokens: int
    """Prompt tokens found in a prefix cache."""


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the output tokens."""

    reasoning_tokens: int
    """Tokens of reasoning."""


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of a call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | msgspec.UnsetType = msgspec.UNSET
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


def usage_so_far(num_prompt_tokens: int, num_output_tokens: int) -> Usage:
    """Return the usage of a call that still runs."""
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=num_prompt_tokens + num_output_tokens,
    )


def usage_of(ends: Iterable[Finished | None]) -> Usage:
    """Return the usage of a call whose prompts have ended."""
    finished = [end for end in ends if end is not None]
    usage = usage_so_far(
        sum(end.num_prompt_tokens for end in finished), sum(end.num_output_tokens for end in finished)
    )
    num_cached_tokens = sum(end.num_cached_tokens for end in finished)
    usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=num_cached_tokens)
    return usage
