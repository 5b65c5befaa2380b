"""Writes the choices of a completion: text, echo, token ids and OpenAI's older log-probabilities."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.packed_logprobs import PackedLogprobs
from baton_core.sessions.router_messages import RequestSpec
from baton_router.http.completions.schemas import CompletionChoice, CompletionLogprobs, CompletionRequest
from baton_router.http.json_pieces import as_list
from baton_router.http.reply_parts import LEAST, prompt_logprobs_of, token_name
from baton_router.requests.generation import Delta
from baton_router.text.tokenization import Tokenizer

_Utf8: Final = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True, kw_only=True)
class ShownPrompt:
    """The part of a prompt that its choices show."""

    spec: RequestSpec
    echo: str | None
    """Its text, where it is to be repeated."""
    logprobs: PackedLogprobs = field(default_factory=PackedLogprobs)
    """Grows until the first token."""


class ChoiceWriter:
    """Writes one choice, at once or piece by piece."""

    def __init__(
        self, index: int, body: CompletionRequest, prompt: ShownPrompt, tokenizer: Tokenizer
    ) -> None:
        self._index = index
        self._body = body
        self._prompt = prompt
        self._tokenizer = tokenizer
        names_ids = bool(body.return_tokens_as_token_ids)
        self._logprobs = _LogprobsWriter(tokenizer, prompt.spec, names_ids=names_ids)
        self._is_first = True

    def write(self, delta: Delta) -> CompletionChoice:
        """Return the new part of the choice; the first one also shows the prompt where that is requested."""
        body, prompt = self._body, self._prompt
        shows_prompt, self._is_first = self._is_first, False
        echo = prompt.echo if shows_prompt else None
        token_ids, entries, text = delta.token_ids, delta.logprobs, delta.text
        if not body.shows_output:
            token_ids, entries, text = (), (), ""
        choice = CompletionChoice(
            index=self._index,
            text=(echo or "") + text,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=list(token_ids) if body.return_token_ids else None,
        )
        if body.logprobs is not None:
            shown = _Positions(token_ids=token_ids, entries=entries)
            if echo is not None:
                of_prompt = _Positions(token_ids=prompt.spec.prompt_token_ids, entries=prompt.logprobs)
                shown = replace(shown, prompt=of_prompt, echo=echo)
            choice.logprobs = self._logprobs.write(shown)
        if shows_prompt and body.return_token_ids:
            choice.prompt_token_ids = list(prompt.spec.prompt_token_ids)
        if shows_prompt and body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs_of(prompt.logprobs, self._tokenizer)
        return choice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Positions:
    """Tokens and their log-probabilities; those of a prompt before them, whose first token has none."""

    token_ids: Sequence[int]
    entries: Collection[PositionLogprobs]
    prompt: _Positions | None = None
    echo: str = ""
    """The text of the prompt."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + (0 if self.prompt is None else self.prompt.num_tokens)

    def all_token_ids(self) -> Iterator[int]:
        return iter(self.token_ids) if self.prompt is None else chain(self.prompt.token_ids, self.token_ids)

    def all_entries(self) -> Iterator[PositionLogprobs | None]:
        if self.prompt is None:
            return iter(self.entries)
        return chain((None,), self.prompt.entries, self.entries)


class _LogprobsWriter:
    """Follows where in the text tokens begin: a character is there once all its bytes are."""

    def __init__(self, tokenizer: Tokenizer, spec: RequestSpec, *, names_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = spec.params.skip_special_tokens
        self._names_ids = names_ids
        self._decoder = _Utf8(errors="replace")
        self._offset = 0

    def write(self, shown: _Positions) -> CompletionLogprobs:
        """Return log-probabilities to be encoded before the next call, which needs their text offsets."""
        num_tokens = shown.num_tokens
        own = (None if one is None else max(one.logprobs[0], LEAST) for one in shown.all_entries())
        tops = (None if one is None else self._top(one) for one in shown.all_entries())
        return CompletionLogprobs(
            tokens=as_list(map(self._name, shown.all_token_ids()), num_tokens),
            token_logprobs=as_list(own, num_tokens),
            top_logprobs=as_list(tops, num_tokens),
            text_offset=as_list(self._offsets(shown), num_tokens),
        )

    def _offsets(self, shown: _Positions) -> Iterator[int]:
        if shown.prompt is not None:
            yield from self._prompt_offsets(shown.prompt.token_ids, shown.echo)
        for token_id in shown.token_ids:
            yield self._offset
            if self._tokenizer.is_decoded(token_id, skip_special_tokens=self._skips_special):
                self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def _prompt_offsets(self, token_ids: Iterable[int], text: str) -> Iterator[int]:
        """Yield where in the prompt's `text` its tokens begin.

        The text may lack special tokens, or have them, and the spaces that some tokenizers put before words.
        """
        decoder = _Utf8(errors="replace")
        offset = 0
        for token_id in token_ids:
            yield min(offset, len(text))
            added = self._tokenizer.added_text(token_id)
            if added is None or text.startswith(added, offset):
                piece = decoder.decode(self._tokenizer.token_bytes(token_id))
                offset += len(piece) - (piece.startswith(" ") and not text.startswith(" ", offset))
        self._offset = len(text)

    def _top(self, entry: PositionLogprobs) -> dict[str, float]:
        pairs = zip(entry.token_ids, entry.logprobs, strict=True)
        return {self._name(token_id): max(logprob, LEAST) for token_id, logprob in pairs}

    def _name(self, token_id: int) -> str:
        return token_name(self._tokenizer, token_id, as_id=self._names_ids)
