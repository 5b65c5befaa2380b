"""A request's tokens as its client sees them: text, ends, and what is billed.

Tokens become text as they arrive, on the router's loop: a character is shown once all its bytes are there, a
stop string ends the text, and the cost of a token does not grow with the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from baton_core.prompt_embeds import known_tokens
from baton_core.requests.finish import FinishReason
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec, SequenceOutput
from baton_router.core.router_events import FinishRequest
from baton_router.requests.generation import Delta, Finished
from baton_router.text.characters import CharacterStream
from baton_router.text.stop_strings import StopMatcher
from baton_router.text.tokenization import Tokenizer

REPETITION_DETECTED: Final = "repetition_detected"
"""vLLM's stop reason of a sequence that repeats itself."""


class RequestText:
    """Turns the outputs of all sequences of one request into events. `num_tokens` counts what they show."""

    def __init__(self, spec: RequestSpec, tokenizer: Tokenizer) -> None:
        self.spec = spec
        self.num_tokens = 0
        self.num_cut_tokens = 0
        """Tokens that came together with a stop string, after it."""
        self.finish_reasons: list[str] = []
        """Finish reasons of the ended sequences, in the order of their ends."""
        self.sequence_tokens = [0] * spec.params.n
        """Tokens of each sequence that events show."""
        self._eos_token_id = None if spec.params.ignore_eos else tokenizer.eos_token_id
        n = spec.params.n
        prompt = known_tokens(spec.prompt_token_ids, spec.prompt_embeds)
        self._texts = [IncrementalDetokenizer(tokenizer, prompt, spec.params) for _ in range(n)]
        self._alive = set(range(n))

    def push(self, output: SequenceOutput, num_cached_tokens: int | None = None) -> tuple[Delta | None, bool]:
        """Take new tokens: their event, and whether a stop string ends a sequence whose worker continues.

        No event for tokens that come after their sequence's end. `num_cached_tokens` is as in `Delta`.
        """
        if output.index not in self._alive:
            return None, False
        reason = output.finish_reason
        text = self._texts[output.index].append(
            output.token_ids, reason is not None, is_stop_token=reason is FinishReason.STOP
        )
        delta = self._delta(output, text, num_cached_tokens)
        if delta.finish_reason:
            self._alive.discard(output.index)
            self.finish_reasons.append(delta.finish_reason)
        self.num_tokens += len(delta.token_ids)
        self.sequence_tokens[output.index] += len(delta.token_ids)
        if text.stop_text is not None:
            self.num_cut_tokens += len(output.token_ids) - len(delta.token_ids)
        return delta, text.stop_text is not None and reason is None

    def finish(self, finished: FinishRequest) -> Finished:
        """Return the last event."""
        if finished.pooled is not None:
            self.finish_reasons.append(FinishReason.STOP)
        return Finished(
            request_id=self.spec.request_id,
            num_prompt_tokens=finished.num_prompt_tokens,
            num_output_tokens=self.num_tokens,
            num_cached_tokens=finished.num_cached_tokens,
            seed=self.spec.params.seed or 0,
            timings=finished.timings,
            pooled=finished.pooled,
        )

    def _delta(self, output: SequenceOutput, text: DetokenizedDelta, num_cached_tokens: int | None) -> Delta:
        is_stopped = text.stop_text is not None
        return Delta(
            index=output.index,
            text=text.text,
            token_ids=output.token_ids[: text.num_kept_tokens],
            logprobs=output.logprobs[: text.num_kept_tokens],
            finish_reason=FinishReason.STOP if is_stopped else output.finish_reason,
            stop_reason=text.stop_text if is_stopped else self._stop_reason(output),
            num_cached_tokens=num_cached_tokens,
        )

    def _stop_reason(self, output: SequenceOutput) -> str | int | None:
        if output.finish_reason is FinishReason.REPETITION:
            return REPETITION_DETECTED
        return None if output.stop_token_id == self._eos_token_id else output.stop_token_id


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
