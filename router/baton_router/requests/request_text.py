"""A request's tokens as its client sees them: text, ends, and what is billed."""

from __future__ import annotations

from typing import Final

from baton_core.prompt_embeds import known_tokens
from baton_core.requests.finish import FinishReason
from baton_core.sessions.router_messages import RequestSpec, SequenceOutput
from baton_router.core.router_events import FinishRequest
from baton_router.requests.generation import Delta, Finished
from baton_router.text.detokenizer import DetokenizedDelta, IncrementalDetokenizer
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
