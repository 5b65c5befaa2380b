"""Datasets that are files of texts: ShareGPT's conversations, and prompts of one's own as JSON lines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from baton_bench.answers import BenchRequest
from baton_bench.token_source import TokenSource
from baton_core.errors import InvalidConfigError

MIN_TOKENS: Final = 4
MAX_PROMPT_TOKENS: Final = 1024
MAX_TOKENS: Final = 2048
"""Tokens of prompt and answer together; benchmarks of ShareGPT leave out longer conversations."""
_MOST: Final = 2**31 - 1
_NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError)


class _Turn(msgspec.Struct, frozen=True):
    value: str


class _Conversation(msgspec.Struct, frozen=True):
    conversations: list[_Turn]


class _Line(msgspec.Struct, frozen=True):
    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=_MOST)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGpt:
    """The first question of each conversation, for an answer as long as the one it got."""

    path: Path
    output_len: int | None = None
    """Tokens of every answer, instead of the file's."""
    is_shuffled: bool = True
    repeats: bool = True
    """True if a file with too few prompts is read again."""

    def sample(self, count: int, rng: random.Random, source: TokenSource) -> list[BenchRequest]:
        """Up to `count` requests.

        Raises:
            InvalidConfigError: the file cannot be read, or none of it can be used.
        """
        try:
            conversations = msgspec.json.decode(_read(self.path), type=list[_Conversation])
        except _NO_JSON as error:
            raise InvalidConfigError(
                f"--dataset-path is {str(self.path)!r}; allowed: a JSON list of objects with "
                f"`conversations`, each turn with a `value` ({error})"
            ) from None
        pairs = [one.conversations[:2] for one in conversations if len(one.conversations) >= 2]
        if self.is_shuffled:
            rng.shuffle(pairs)
        requests = (self._request(question.value, answer.value, source) for question, answer in pairs)
        return _taken(filter(None, requests), count, self.path, repeats=self.repeats)

    def _request(self, question: str, answer: str, source: TokenSource) -> BenchRequest | None:
        """None where it is too short or too long; without a tokenizer nothing is."""
        if self.output_len is not None and source.tokenizer is None:
            return (
                BenchRequest(prompt=question, num_prompt_tokens=0, num_tokens=self.output_len)
                if question
                else None
            )
        prompt_len = source.count(question, "--sharegpt-output-len")
        output_len = self.output_len or source.count(answer, "--sharegpt-output-len")
        is_short = prompt_len < MIN_TOKENS or (self.output_len is None and output_len < MIN_TOKENS)
        if is_short or prompt_len > MAX_PROMPT_TOKENS or prompt_len + output_len > MAX_TOKENS:
            return None
        return BenchRequest(prompt=question, num_prompt_tokens=prompt_len, num_tokens=output_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomPrompts:
    """JSON lines with `prompt`, and `output_tokens` where a line has its own."""

    path: Path
    output_len: int = 256
    is_shuffled: bool = True
    repeats: bool = True

    def sample(self, count: int, rng: random.Random, source: TokenSource) -> list[BenchRequest]:
        """Up to `count` requests.

        Raises:
            InvalidConfigError: the file cannot be read, has no prompt, or a line is none.
        """
        lines = list(self._lines())
        if self.is_shuffled:
            rng.shuffle(lines)
        requests = (
            BenchRequest(
                prompt=line.prompt,
                num_prompt_tokens=0
                if source.tokenizer is None
                else len(source.tokenizer.encode(line.prompt)),
                num_tokens=line.output_tokens or self.output_len,
            )
            for line in lines
        )
        return _taken(requests, count, self.path, repeats=self.repeats)

    def _lines(self) -> Iterator[_Line]:
        for number, line in enumerate(_read(self.path).splitlines(), start=1):
            if not line.strip():
                continue
            try:
                yield msgspec.json.decode(line, type=_Line)
            except _NO_JSON as error:
                raise InvalidConfigError(
                    f"line {number} of {self.path} is no prompt ({error}); allowed: a JSON object with "
                    "`prompt` and perhaps `output_tokens`"
                ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidConfigError(
            f"--dataset-path is {str(path)!r}; allowed: a readable file ({error.strerror})"
        ) from None


def _taken(requests: Iterator[BenchRequest], count: int, path: Path, *, repeats: bool) -> list[BenchRequest]:
    """The first `count`, begun again where there are fewer."""
    taken = [request for request, _ in zip(requests, range(count), strict=False)]
    if not taken:
        raise InvalidConfigError(
            f"--dataset-path is {str(path)!r}; allowed: a file with a prompt that can be used"
        )
    return [taken[number % len(taken)] for number in range(count)] if repeats else taken
