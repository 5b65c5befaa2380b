"""Log-probabilities of a prompt, in vLLM's form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from baton_core.requests.logprobs import PositionLogprobs
from baton_router.tokenization import Tokenizer

LEAST: Final = -9999.0
"""Stands for a probability of 0, since JSON has no infinity."""


class Logprob(msgspec.Struct, kw_only=True):
    """Of one token at one position."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, Logprob] | None]
"""One entry for each token by the ids of the tokens; none for the first, which nothing comes before."""


def prompt_logprobs_of(entries: Iterable[PositionLogprobs], tokenizer: Tokenizer) -> PromptLogprobs:
    """Return the entries of a whole prompt; `entries` begin with its second token."""
    return [None, *(_by_token(entry, tokenizer) for entry in entries)]


def _by_token(entry: PositionLogprobs, tokenizer: Tokenizer) -> dict[str, Logprob]:
    return {
        str(token_id): Logprob(
            logprob=max(logprob, LEAST), rank=rank, decoded_token=tokenizer.token_text(token_id)
        )
        for token_id, logprob, rank in zip(entry.token_ids, entry.logprobs, entry.ranks, strict=True)
    }
