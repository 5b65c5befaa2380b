"""Tokens that mean nothing, for prompts of a given length: as ids, or as a text of as many tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from baton_bench.answers import BenchRequest
from baton_core.errors import InvalidConfigError
from baton_router.text.model_folder import find_model_folder, read_model_folder
from baton_router.text.tokenization import Tokenizer

FIRST_TOKEN: Final = 16
"""Tokens below it have meanings in many vocabularies."""
_ROUNDS: Final = 10
_WORD: Final = re.compile(" [A-Za-z]+")
_MIN_WORDS: Final = 100


class TokenSource:
    """The tokens of one model.

    Args:
        tokenizer: None where there is none.
        vocab_size: ids are below it.
        writes_text: whether prompts are text rather than ids; needs a tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, *, writes_text: bool) -> None:
        self.tokenizer = tokenizer
        self.writes_text = writes_text and tokenizer is not None
        self.choices: Sequence[int] = range(FIRST_TOKEN, vocab_size)
        """Token ids to sample from: for a text words of one token each, if the vocabulary has enough."""
        if writes_text and tokenizer is not None:
            words = [one for one in self.choices if _WORD.fullmatch(tokenizer.token_text(one))]
            self.choices = words if len(words) >= _MIN_WORDS else self.choices

    @classmethod
    def of_model(cls, name: str, *, writes_text: bool) -> TokenSource:
        """Make the source of a model's folder or Hugging Face id.

        Raises:
            InvalidModelError: there is none, or it has no tokenizer.
        """
        folder = read_model_folder(find_model_folder(name))
        return cls(Tokenizer(folder), folder.vocab_size, writes_text=writes_text)

    def sample(self, rng: random.Random, count: int) -> tuple[int, ...]:
        """`count` ids."""
        return tuple(rng.choices(self.choices, k=count))

    def request(
        self, rng: random.Random, token_ids: tuple[int, ...], num_tokens: int, session_id: str = ""
    ) -> BenchRequest:
        """Ask for `num_tokens` after a prompt of these ids, or of a text that begins with theirs.

        A text has as many tokens as ids are given, unless no such text is found within ten tries: then a few
        more or less.
        """
        prompt: str | tuple[int, ...] = token_ids
        count = len(token_ids)
        if self.writes_text:
            assert self.tokenizer is not None, "it writes text"
            prompt, count = self._text(rng, self.tokenizer, token_ids)
        return BenchRequest(
            prompt=prompt, num_prompt_tokens=count, num_tokens=num_tokens, session_id=session_id
        )

    def count(self, text: str, field: str) -> int:
        """Tokens of a text.

        Raises:
            InvalidConfigError: there is no tokenizer; `field` is the setting that does without.
        """
        if self.tokenizer is None:
            raise InvalidConfigError(
                f"--tokenizer is not given and {field} neither; allowed: one of them, for lengths of answers "
                "are counted in tokens"
            )
        return len(self.tokenizer.encode(text))

    def _text(self, rng: random.Random, tokenizer: Tokenizer, token_ids: tuple[int, ...]) -> tuple[str, int]:
        """Read back what the ids spell, and draw another end, until it has as many tokens."""
        target, ids = len(token_ids), token_ids
        for _ in range(_ROUNDS):
            text = tokenizer.decode(ids)
            found = tokenizer.encode(text)
            if len(found) == target:
                break
            kept = found[: target - 1]
            ids = (*kept, *self.sample(rng, target - len(kept)))
        return text, len(found)


def is_model_folder(name: str) -> bool:
    """True if a model's name is that of a folder here, so that nothing has to be fetched."""
    return bool(name) and (Path(name) / "config.json").is_file()
