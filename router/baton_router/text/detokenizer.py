"""Turns a sequence's tokens into text as they arrive, on the router's loop.

A character is shown once all its bytes are there, a stop string ends the text, and the cost of a token does
not grow with the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from baton_core.requests.sampling_params import SamplingParams
from baton_router.text.characters import CharacterStream
from baton_router.text.stop_strings import StopMatcher
from baton_router.text.tokenization import Tokenizer


class DetokenizedDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The text that one batch of tokens adds to a sequence."""

    text: str = ""
    """New text; empty while everything new is held back."""
    num_kept_tokens: int = 0
    """Tokens that belong to the output; those after a stop string do not."""
    stop_text: str | None = None
    """The stop string that ended the text; what follows it is dropped."""


class IncrementalDetokenizer:
    """The text of one sequence.

    All deltas together are what the output adds to the prompt's text, cut at the first stop string that ends
    after the first `min_tokens` tokens: `decode(output)`, but with the space that some decoders strip from
    the beginning of a text, if the prompt has any, and without bytes at the end that end no character.
    Without `detokenize` there is no text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._stream = _TextStream(tokenizer, prompt_token_ids, params)
        self._matcher = StopMatcher(params.stop, include_stop=params.include_stop_str_in_output)
        self._shows_text = params.detokenize
        self._shows_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._is_stopped = False

    def append(
        self, token_ids: Sequence[int], is_last: bool, *, is_stop_token: bool = False
    ) -> DetokenizedDelta:
        """Take the next tokens and return what they add.

        `is_last` flushes what was held back. `is_stop_token` says that the last token ended the sequence
        (the worker's finish reason is "stop"): its text is left out, unless stop texts are to be shown.
        After a stop string every further call returns an empty delta.
        """
        if self._is_stopped:
            return DetokenizedDelta()
        if not self._shows_text:
            return DetokenizedDelta(num_kept_tokens=len(token_ids))
        num_decoded = len(token_ids) - (is_stop_token and not self._shows_stop)
        shown: list[str] = []
        for position, token_id in enumerate(token_ids[: max(num_decoded, 0)], 1):
            self._num_tokens += 1
            text = self._stream.push(token_id)
            can_show, stop_text = self._matcher.push(text, can_stop=self._num_tokens > self._min_tokens)
            shown.append(can_show)
            if stop_text is not None:
                self._is_stopped = True
                return DetokenizedDelta(text="".join(shown), num_kept_tokens=position, stop_text=stop_text)
        if is_last:
            shown.append(self._matcher.flush())
        return DetokenizedDelta(text="".join(shown), num_kept_tokens=len(token_ids))


class _TextStream:
    """Tokens in, complete characters out."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skips_special = params.skip_special_tokens
        self._spaces_special = params.skip_special_tokens or params.spaces_between_special_tokens
        self._last = next(filter(self._is_decoded, reversed(prompt_token_ids)), None)
        self._characters = CharacterStream()

    def push(self, token_id: int) -> str:
        if self._last is not None and self._characters.is_between:
            text = self._tokenizer.whole_text(token_id)
            if text is not None:  # as that of almost every token
                self._last = token_id
                return text
        if not self._is_decoded(token_id):
            return ""
        data = self._bytes_of(token_id)
        self._last = token_id
        return self._characters.push(data)

    def _bytes_of(self, token_id: int) -> bytes:
        if not self._spaces_special and self._last is not None:
            text = self._tokenizer.added_text(token_id)
            if text is not None and self._tokenizer.added_text(self._last) is not None:
                return text.encode()
        return self._tokenizer.bytes_after(self._last, token_id)

    def _is_decoded(self, token_id: int) -> bool:
        return self._tokenizer.is_decoded(token_id, skip_special_tokens=self._skips_special)
