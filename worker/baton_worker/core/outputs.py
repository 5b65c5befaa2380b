"""The messages about sampled tokens."""

from __future__ import annotations

from typing import Final

from baton_core.requests.finish import FinishReason, finish_reason, is_full
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import FirstToken, Pooled, PromptLogprobs, SequenceOutput
from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.step_plan import PooledValues
from baton_worker.core.worker_config import WorkerConfig

MAX_PART_BYTES: Final = 1 << 20
"""Size of the parts in which a large pooled result travels."""


class Outputs:
    """The outputs of one worker: its model and its configuration decide what ends a sequence."""

    def __init__(self, config: WorkerConfig) -> None:
        self._eos_token_ids = config.eos_token_ids
        self._max_model_len = config.max_model_len

    def ends_with_next(self, seq: Sequence) -> bool:
        """True if a sequence ends with its next token, whichever it is: a pinned one ends with its first."""
        return seq.is_pinned or is_full(
            seq.params,
            num_output_tokens=seq.num_output_tokens + 1,
            num_tokens=seq.num_tokens + 1,
            max_model_len=self._max_model_len,
        )

    def prompt_logprobs(self, seq: Sequence, entries: tuple[PositionLogprobs, ...]) -> list[PromptLogprobs]:
        """Log-probabilities of the chunk just computed, unless all were published before."""
        start, fresh = seq.take_prompt_logprobs(entries)
        message = PromptLogprobs(request_id=seq.seq_id.request_id, start=start, entries=fresh)
        return [message] if fresh else []

    def first_token(
        self,
        now: float,
        leader: Sequence,
        sampled: tuple[int, ...],
        logprobs: tuple[PositionLogprobs, ...],
    ) -> FirstToken:
        """Return the first tokens after the prompt: one for each sequence, none of which has taken it yet.

        One that was resumed takes it: what ends it may depend on all its tokens.
        """
        if leader.num_output_tokens:
            outputs: tuple[SequenceOutput, ...] = (self.next_tokens(leader, sampled[:1], logprobs),)
        else:
            outputs = tuple(
                self._output(
                    leader,
                    index,
                    (token_id,),
                    logprobs[index : index + 1],
                    self._finish_reason(leader, token_id, num_output_tokens=1),
                )
                for index, token_id in enumerate(sampled)
            )
        return FirstToken(
            request_id=leader.seq_id.request_id,
            outputs=outputs,
            num_cached_tokens=leader.num_cached_tokens or 0,
            queue_s=leader.entered_s[SequenceState.RUNNING] - leader.arrival_s,
            prefill_s=now - leader.entered_s[SequenceState.RUNNING],
        )

    def pooled(self, now: float, seq: Sequence, result: PooledValues) -> list[Pooled]:
        """Return the messages of a result, each of a size that a session carries easily."""
        running_s = seq.entered_s[SequenceState.RUNNING]
        return [
            Pooled(
                request_id=seq.seq_id.request_id,
                shape=result.shape,
                values=result.values[start : start + MAX_PART_BYTES],
                num_cached_tokens=seq.num_cached_tokens or 0,
                queue_s=running_s - seq.arrival_s,
                prefill_s=now - running_s,
            )
            for start in range(0, max(1, len(result.values)), MAX_PART_BYTES)
        ]

    def next_tokens(
        self, seq: Sequence, token_ids: tuple[int, ...], logprobs: tuple[PositionLogprobs, ...]
    ) -> SequenceOutput:
        """Let a sequence take its next tokens, at least one; those behind one that ends it are dropped."""
        reason: FinishReason | None = None
        taken = 0
        while reason is None and taken < len(token_ids):
            seq.append(token_ids[taken])
            reason = self._finish_reason(seq, token_ids[taken], seq.num_output_tokens)
            taken += 1
        return self._output(seq, seq.seq_id.index, token_ids[:taken], logprobs[:taken], reason)

    def _finish_reason(self, seq: Sequence, token_id: int, num_output_tokens: int) -> FinishReason | None:
        return finish_reason(
            seq.params,
            token_id=token_id,
            num_output_tokens=num_output_tokens,
            num_tokens=seq.num_prompt_tokens + num_output_tokens,
            eos_token_ids=self._eos_token_ids,
            max_model_len=self._max_model_len,
            is_repeating=seq.is_repeating,
        )

    def _output(
        self,
        seq: Sequence,
        index: int,
        token_ids: tuple[int, ...],
        logprobs: tuple[PositionLogprobs, ...],
        reason: FinishReason | None,
    ) -> SequenceOutput:
        return SequenceOutput(
            request_id=seq.seq_id.request_id,
            index=index,
            token_ids=token_ids,
            finish_reason=reason,
            stop_token_id=token_ids[-1] if reason is FinishReason.STOP else None,
            logprobs=logprobs,
        )
