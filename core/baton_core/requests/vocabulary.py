"""Sampling parameters against a model: its vocabulary, and the words that its tokenizer writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams


class Encoder(Protocol):
    """The tokenizer's half that words need."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]: ...


def check_vocabulary(params: SamplingParams, *, vocab_size: int, max_logprobs: int) -> None:
    """Refuse token ids that the model lacks, and more log-probabilities than are given of one position.

    Raises:
        InvalidRequestError: naming the field.
    """
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    check_token_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    check_token_ids("logprob_token_ids", params.logprob_token_ids or (), vocab_size)
    check_token_ids("logit_bias", tuple(params.logit_bias or ()), vocab_size)
    for field, value in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        wanted = vocab_size if value == -1 else value or 0
        if wanted > max_logprobs:
            lowest = -1 if max_logprobs == vocab_size else 0
            allowed = f"{lowest} to {max_logprobs}, of which --max-logprobs decides"
            raise InvalidRequestError(field, value, allowed)


def check_token_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids that the model has no token for.

    Raises:
        InvalidRequestError: naming one such id.
    """
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(field, token_id, f"token ids from 0 to {vocab_size - 1}")


def encode_bad_words(
    words: Sequence[str], tokenizer: Encoder, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, as it stands at the beginning of a text and after a space.

    The second only where its first token differs: some tokenizers write both alike.

    Raises:
        InvalidRequestError: a word is blank, or has a token that the model lacks.
    """
    encoded: list[tuple[int, ...]] = []
    for word in words:
        bare = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        if not word.strip() or not bare:
            raise InvalidRequestError("bad_words", word, "words with at least one character that is no space")
        for token_ids in (bare, spaced):
            check_token_ids("bad_words", token_ids, vocab_size)
        encoded.append(bare)
        if spaced[0] != bare[0]:
            encoded.append(spaced)
    return tuple(encoded)
