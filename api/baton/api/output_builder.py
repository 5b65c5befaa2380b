"""Puts the events of one request together, and shows them as the request's output kind says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from baton.logprobs import FlatLogprobs, LogprobsOnePosition, SampleLogprobs, read_position
from baton.lora import LoRARequest
from baton.outputs import CompletionOutput, RequestOutput, RequestStateStats
from baton_core.requests.finish import FinishReason
from baton_core.requests.sampling_params import RequestOutputKind
from baton_core.sessions.router_messages import RequestSpec
from baton_router.requests.generation import Delta, Finished, GenerationEvent, HeldDeltas, PromptDelta
from baton_router.text.characters import TokenTexts


class OutputBuilder:
    """One request's output as it grows. Its size is bounded by the request's own tokens."""

    def __init__(
        self,
        prompt: str | None,
        spec: RequestSpec,
        new_texts: Callable[[], TokenTexts],
        *,
        kind: RequestOutputKind | None = None,
        arrival_s: float | None = None,
        lora_request: LoRARequest | None = None,
    ) -> None:
        """`kind` is instead of the request's own, `arrival_s` wall clock."""
        params = spec.params
        self.spec = spec
        self._prompt, self._lora_request = prompt, lora_request
        self._kind = params.output_kind if kind is None else kind
        self._held = HeldDeltas(params.stream_interval or 1)
        self._texts = [new_texts() if params.detokenize else None for _ in range(params.n)]
        self._prompt_texts = new_texts() if params.detokenize else None
        now_s = time.time()
        self._arrival_s = now_s if arrival_s is None else arrival_s
        self._epoch_s = now_s - time.monotonic()
        """Added to the monotonic clock: no step of the wall clock moves a token."""
        self._sequences = [_SequenceOutput(index, params.flat_logprobs) for index in range(params.n)]
        self._prompt_logprobs: list[LogprobsOnePosition | None] = [None]
        self._num_cached_tokens: int | None = None
        self._first_token_s: float | None = None
        self._last_token_s: float | None = None
        self._last_s_by_index: dict[int, float] = {}
        self.token_gaps: list[tuple[float, int]] = []
        """Seconds between tokens of a sequence, and how many tokens came with that gap."""
        self.finished: Finished | None = None
        """The request's end, unless it was aborted."""
        self.is_over = False
        """True once the request has ended."""
        self._has_shown_prompt = False

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences so far."""
        return sum(len(sequence.token_ids) for sequence in self._sequences)

    @property
    def num_longest(self) -> int:
        """Tokens of the longest sequence so far."""
        return max(len(sequence.token_ids) for sequence in self._sequences)

    @property
    def finish_reasons(self) -> list[str]:
        """Finish reasons of the sequences that have ended."""
        return [sequence.finish_reason for sequence in self._sequences if sequence.finish_reason is not None]

    def push(self, event: GenerationEvent) -> None:
        """Take the next event."""
        match event:
            case Delta():
                self._last_token_s = self._epoch_s + time.monotonic()
                self._first_token_s = self._first_token_s or self._last_token_s
                self._time(event, self._last_token_s)
                if self._num_cached_tokens is None:
                    self._num_cached_tokens = event.num_cached_tokens
                if (due := self._held.add(event)) is not None:
                    self._take_delta(due)
            case PromptDelta(logprobs=entries):
                self._prompt_logprobs += [read_position(entry, self._prompt_texts) for entry in entries]
            case Finished():
                self._release_held()
                self.finished, self.is_over = event, True
                self._num_cached_tokens = event.num_cached_tokens

    def abort(self) -> None:
        """End the open sequences, with `abort` as their reason."""
        self._release_held()
        for sequence in self._sequences:
            if sequence.finish_reason is None:
                sequence.finish_reason, sequence.has_news = str(FinishReason.ABORT), True
        self.is_over = True

    def take(self) -> RequestOutput | None:
        """Return the output to show now, or None. The last one is returned once, with `finished`."""
        has_ended = all(sequence.finish_reason is not None for sequence in self._sequences)
        if has_ended and not self.is_over:
            return None  # its end is on the way
        has_news = any(sequence.has_news for sequence in self._sequences)
        if not has_news or (self._kind is RequestOutputKind.FINAL_ONLY and not self.is_over):
            return None
        is_delta = self._kind is RequestOutputKind.DELTA
        shown = [sequence for sequence in self._sequences if sequence.has_news or not is_delta]
        outputs = [sequence.show(is_delta=is_delta) for sequence in shown]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=list(self.spec.prompt_token_ids),
            prompt_logprobs=self._show_prompt(is_delta=is_delta),
            outputs=outputs,
            finished=self.is_over,
            lora_request=self._lora_request,
            metrics=self._metrics(),
            num_cached_tokens=self._num_cached_tokens,
            kv_transfer_params=self._transfer_params(),
        )

    def _time(self, delta: Delta, now_s: float) -> None:
        last_s, num_tokens = self._last_s_by_index.get(delta.index), len(delta.token_ids)
        if num_tokens:
            self._last_s_by_index[delta.index] = now_s
            if last_s is not None:
                self.token_gaps.append(((now_s - last_s) / num_tokens, num_tokens))

    def _take_delta(self, delta: Delta) -> None:
        texts = self._texts[delta.index]
        logprobs = [read_position(entry, texts) for entry in delta.logprobs]
        self._sequences[delta.index].push(delta, logprobs)

    def _release_held(self) -> None:
        for delta in self._held.release():
            self._take_delta(delta)

    def _show_prompt(self, *, is_delta: bool) -> FlatLogprobs | list[LogprobsOnePosition | None] | None:
        params = self.spec.params
        if params.prompt_logprobs is None or (is_delta and self._has_shown_prompt):
            return None
        self._has_shown_prompt = True
        if not params.flat_logprobs:
            return list(self._prompt_logprobs)
        flat = FlatLogprobs()
        flat.extend(self._prompt_logprobs)
        return flat

    def _metrics(self) -> RequestStateStats:
        arrival_s = self._arrival_s
        stats = RequestStateStats(
            num_generation_tokens=self.num_tokens,
            arrival_time=arrival_s,
            queued_ts=arrival_s,
            first_token_ts=self._first_token_s or 0.0,
            last_token_ts=self._last_token_s or 0.0,
        )
        if self.finished is not None:
            timings = self.finished.timings
            stats.scheduled_ts = arrival_s + timings.queue_s
            stats.first_token_ts = arrival_s + timings.first_token_s
            stats.last_token_ts = stats.finished_time = arrival_s + timings.total_s
        if stats.first_token_ts:
            stats.first_token_latency = stats.first_token_ts - arrival_s
        return stats

    def _transfer_params(self) -> dict[str, Any] | None:
        """Facts of the transfer, under the names that engines exchange; None where there was none."""
        finished = self.finished
        worker = "" if finished is None else finished.timings.decode_worker
        if finished is None or not worker or finished.timings.prefill_worker in ("", worker):
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": finished.timings.prefill_worker,
            "remote_request_id": self.request_id,
            "remote_num_tokens": finished.num_prompt_tokens,
            "tp_size": 1,
        }


class _SequenceOutput:
    """One sequence: all of it, and how much of it was shown."""

    def __init__(self, index: int, is_flat: bool) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.has_news = False
        self._stop_reason: str | int | None = None
        self._text = ""
        self._logprobs: list[LogprobsOnePosition] | FlatLogprobs = FlatLogprobs() if is_flat else []
        self._cumulative: float | None = None
        self._shown = (0, 0)

    def push(self, delta: Delta, logprobs: list[LogprobsOnePosition]) -> None:
        self.has_news = True
        self.token_ids += delta.token_ids
        self._text += delta.text
        self._logprobs.extend(logprobs)
        for entry in delta.logprobs:
            self._cumulative = (self._cumulative or 0.0) + entry.logprobs[0]
        if delta.finish_reason is not None:
            self.finish_reason, self._stop_reason = str(delta.finish_reason), delta.stop_reason

    def show(self, *, is_delta: bool) -> CompletionOutput:
        num_characters, num_tokens = self._shown if is_delta else (0, 0)
        self._shown, self.has_news = (len(self._text), len(self.token_ids)), False
        logprobs: SampleLogprobs | None = None
        if self._cumulative is not None:
            logprobs = self._logprobs[num_tokens:]
        return CompletionOutput(
            index=self.index,
            text=self._text[num_characters:],
            token_ids=self.token_ids[num_tokens:],
            cumulative_logprob=self._cumulative,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )
