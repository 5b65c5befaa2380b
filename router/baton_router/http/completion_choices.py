"""Writes the choices of a completion: text, echo, token ids, and log-probabilities in OpenAI's older form."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import RequestSpec
from baton_router.generation import Delta
from baton_router.http.completion_schemas import CompletionChoice, CompletionLogprobs
from baton_router.http.prompt_logprobs import LEAST, prompt_logprobs_of
from baton_router.http.token_names import token_name
from baton_router.tokenization import Tokenizer

_Utf8: Final = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceForm:
    """What the choices of a call show."""

    has_logprobs: bool
    has_prompt_logprobs: bool
    has_token_ids: bool
    names_ids: bool
    """Whether tokens are named by their ids."""
    shows_output: bool
    """False: only the prompt."""


@dataclass(slots=True, kw_only=True)
class ShownPrompt:
    """What choices show of their prompt."""

    spec: RequestSpec
    echo: str | None
    """Its text, where it is to be repeated."""
    logprobs: list[PositionLogprobs]
    """Grows until the first token."""


class ChoiceWriter:
    """Writes one choice, at once or piece by piece."""

    def __init__(self, index: int, form: ChoiceForm, prompt: ShownPrompt, tokenizer: Tokenizer) -> None:
        self._index = index
        self._form = form
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._logprobs = _LogprobsWriter(tokenizer, prompt.spec, names_ids=form.names_ids)
        self._is_first = True

    def write(self, delta: Delta) -> CompletionChoice:
        """Return the choice with what is new; the first one also shows the prompt, where that is asked."""
        form, prompt = self._form, self._prompt
        shows_prompt, self._is_first = self._is_first, False
        echo = prompt.echo if shows_prompt else None
        token_ids, entries, text = delta.token_ids, delta.logprobs, delta.text
        if not form.shows_output:
            token_ids, entries, text = (), (), ""
        choice = CompletionChoice(
            index=self._index,
            text=(echo or "") + text,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=list(token_ids) if form.has_token_ids else UNSET,
        )
        if form.has_logprobs:
            prompt_ids = () if echo is None else prompt.spec.prompt_token_ids
            prompt_entries = [] if echo is None else [None, *prompt.logprobs]
            choice.logprobs = self._logprobs.write((*prompt_ids, *token_ids), (*prompt_entries, *entries))
        if shows_prompt and form.has_token_ids:
            choice.prompt_token_ids = list(prompt.spec.prompt_token_ids)
        if shows_prompt and form.has_prompt_logprobs:
            choice.prompt_logprobs = prompt_logprobs_of(prompt.logprobs, self._tokenizer)
        return choice


class _LogprobsWriter:
    """Follows where in the text tokens begin: a character is there once all its bytes are."""

    def __init__(self, tokenizer: Tokenizer, spec: RequestSpec, *, names_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = spec.params.skip_special_tokens
        self._names_ids = names_ids
        self._decoder = _Utf8(errors="replace")
        self._offset = 0

    def write(
        self, token_ids: Sequence[int], entries: Sequence[PositionLogprobs | None]
    ) -> CompletionLogprobs:
        written = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, entry in zip(token_ids, entries, strict=True):
            written.tokens.append(self._name(token_id))
            written.text_offset.append(self._offset)
            written.token_logprobs.append(None if entry is None else max(entry.logprobs[0], LEAST))
            written.top_logprobs.append(None if entry is None else self._top(entry))
            if self._tokenizer.is_decoded(token_id, skip_special_tokens=self._skips_special):
                self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return written

    def _top(self, entry: PositionLogprobs) -> dict[str, float]:
        pairs = zip(entry.token_ids, entry.logprobs, strict=True)
        return {self._name(token_id): max(logprob, LEAST) for token_id, logprob in pairs}

    def _name(self, token_id: int) -> str:
        return token_name(self._tokenizer, token_id, as_id=self._names_ids)
