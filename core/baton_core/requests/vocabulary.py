"""Token ids against a model's vocabulary, and the tokens of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baton_core.errors import InvalidRequestError


class Encoder(Protocol):
    """The tokenizer's half that words need."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]: ...


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
