"""Turns a sequence's tokens into text as they arrive, on the router's loop.

A character is shown once all its bytes are there, a stop string ends the text, and the cost of a token does
not grow with the sequence: only the last few tokens are decoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from baton_core.sampling_params import SamplingParams
from baton_router.stop_strings import StopMatcher
from baton_router.tokenization import Tokenizer

_REPLACEMENT: Final = "\ufffd"
_MAX_PROMPT_CONTEXT: Final = 8
_MAX_PENDING_TOKENS: Final = 8
"""A character has at most four bytes, so only broken UTF-8 keeps more tokens than this waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizedDelta:
    """What one batch of tokens adds to a sequence."""

    text: str = ""
    """New text; empty while everything new is held back."""
    num_kept_tokens: int = 0
    """How many of the tokens belong to the output; those after a stop string do not."""
    stop_text: str | None = None
    """The stop string that ended the text; what follows it is dropped."""


class IncrementalDetokenizer:
    """The text of one sequence.

    All deltas together are `decode(output tokens)`, cut at the first stop string. Exceptions: the space that
    some tokenizers strip from the beginning of a text is kept, because the output goes on after the prompt;
    and a tokenizer with byte fallback decodes a valid character beside a broken byte as broken too, which
    can no longer be done to one that was shown.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._stream = _TextStream(tokenizer, prompt_token_ids, params.skip_special_tokens)
        self._matcher = StopMatcher(params.stop, include_stop=params.include_stop_str_in_output)
        self._shows_stop = params.include_stop_str_in_output
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
        num_decoded = len(token_ids) - (is_stop_token and not self._shows_stop)
        shown = []
        for position, token_id in enumerate(token_ids[: max(num_decoded, 0)]):
            text, stop_text = self._matcher.push(self._stream.push(token_id))
            shown.append(text)
            if stop_text is not None:
                return self._stop(shown, position + 1, stop_text)
        if is_last:
            text, stop_text = self._matcher.push(self._stream.flush())
            shown.append(text)
            if stop_text is not None:
                return self._stop(shown, len(token_ids), stop_text)
            shown.append(self._matcher.flush())
        return DetokenizedDelta(text="".join(shown), num_kept_tokens=len(token_ids))

    def _stop(self, shown: Sequence[str], num_kept_tokens: int, stop_text: str) -> DetokenizedDelta:
        self._is_stopped = True
        return DetokenizedDelta(text="".join(shown), num_kept_tokens=num_kept_tokens, stop_text=stop_text)


class _TextStream:
    """Tokens in, complete characters out.

    Keeps the tokens whose text is not yet out (`pending`) and those just before them (`context`): some
    decoders spell a token differently at the beginning of a text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._pending: list[int] = []
        context = [token for token in prompt_token_ids[-_MAX_PROMPT_CONTEXT:] if self._is_decoded(token)]
        self._set_context([] if self._decode(context).endswith(_REPLACEMENT) else context)

    def push(self, token_id: int) -> str:
        if not self._is_decoded(token_id):
            return ""
        self._pending.append(token_id)
        text = self._text_of(self._pending)
        if not text.endswith(_REPLACEMENT):
            self._take(len(self._pending))
            return text
        return self._cut(text) if len(self._pending) > _MAX_PENDING_TOKENS else ""

    def flush(self) -> str:
        text = self._text_of(self._pending) if self._pending else ""
        self._take(len(self._pending))
        return text

    def _cut(self, text: str) -> str:
        """Release the part of broken text that no later token can change."""
        for num_taken in range(len(self._pending) - 1, 0, -1):
            left, right = self._text_of(self._pending[:num_taken]), self._decode(self._pending[num_taken:])
            # Decoding apart what belongs to one character gives more replacements than decoding it whole.
            if right and left + right == text:
                self._take(num_taken)
                return left
        return ""

    def _take(self, num_tokens: int) -> None:
        taken, self._pending = self._pending[:num_tokens], self._pending[num_tokens:]
        self._set_context(taken)

    def _set_context(self, token_ids: list[int]) -> None:
        self._context = token_ids
        self._context_text = self._decode(token_ids)

    def _text_of(self, token_ids: list[int]) -> str:
        text = self._decode(self._context + token_ids)
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        return self._decode(token_ids)  # byte fallback: a broken byte changed how the context is decoded

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special)

    def _is_decoded(self, token_id: int) -> bool:
        return self._tokenizer.is_decoded(token_id, skip_special_tokens=self._skip_special)
