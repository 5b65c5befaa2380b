"""The step being planned: what it holds so far, and how much more it may take."""

from __future__ import annotations

from baton_core.worker.sequence import Sequence
from baton_core.worker.step_plan import SAMPLED, DraftOrder, Followed, SeqId, SequenceSlice, StepPlan
from baton_worker.core.scheduler_config import SchedulerConfig


class PlanBuilder:
    """Takes slices up to the limits of a step; limits are judged by a sequence's uncomputed tokens."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.budget = config.max_num_batched_tokens
        self.num_preempted_before = 0
        self.num_tokens: dict[Sequence, int] = {}
        self.orders: dict[Sequence, DraftOrder] = {}
        """Tokens to draft by a model, for sequences that decode."""
        self.slices: list[SequenceSlice] = []
        self.copies: list[tuple[int, int]] = []
        self.partial: list[int] = []
        """Uncomputed tokens of each sequence that the step computes in part."""

    def chunk(self, num_uncomputed: int) -> int:
        """Tokens that a sequence may compute in this step."""
        num_tokens = min(num_uncomputed, self.budget)
        if self._is_long(num_uncomputed):
            return min(num_tokens, self._config.long_prefill_token_threshold)
        return num_tokens

    def num_tokens_of(self, seq: Sequence, num_ahead: int = 0) -> int:
        """Tokens that this step computes of a sequence that has a place, behind `num_ahead` in flight."""
        if seq.is_whole:
            return seq.num_uncomputed_tokens
        return min(self.chunk(seq.num_uncomputed_tokens - num_ahead), seq.max_chunk_tokens)

    def would_cut(self, seq: Sequence) -> bool:
        """True if what is left of the step is too little for a sequence that is computed whole."""
        return seq.is_whole and seq.num_uncomputed_tokens > self.budget

    def cuts(self, num_uncomputed: int) -> bool:
        """True if the step leaves a sequence with more tokens to compute."""
        return self.chunk(num_uncomputed) < num_uncomputed

    def has_place_for(self, num_uncomputed: int, partial: list[int]) -> bool:
        """True if a sequence may be computed beside those that are computed in part."""
        if not self.cuts(num_uncomputed):
            return True
        if len(partial) >= self._config.max_num_partial_prefills:
            return False
        num_long = sum(map(self._is_long, partial))
        return not self._is_long(num_uncomputed) or num_long < self._config.max_long_partial_prefills

    def add_verified(self, seq: Sequence, draft: tuple[int, ...], copies: list[tuple[int, int]]) -> None:
        """Take the last token of a sequence and a draft behind it, whose slots are writable."""
        num_tokens, end = 1 + len(draft), seq.num_tokens + len(draft)
        self.budget -= num_tokens
        self.num_tokens[seq] = num_tokens
        self.copies += copies
        self.slices.append(
            SequenceSlice(
                seq_id=seq.seq_id,
                token_ids=(seq.token_ids[-1], *draft),
                start=seq.num_computed_tokens,
                block_tables=seq.tables.upto(end),
                samples=seq.verification_specs(draft),
                num_drafts=len(draft),
                adapter=seq.adapter_digest,
                order=self.orders.get(seq),
            )
        )

    def add(self, seq: Sequence, num_tokens: int, copies: list[tuple[int, int]], num_ahead: int = 0) -> None:
        """Take the next tokens of a sequence behind `num_ahead` that steps in flight compute."""
        start = seq.num_computed_tokens + num_ahead
        end = start + num_tokens
        targets = seq.prompt_targets(start, end)
        self.budget -= num_tokens
        self.num_tokens[seq] = num_tokens
        self.copies += copies
        if end < seq.num_tokens:
            self.partial.append(seq.num_tokens - start)
        self.slices.append(
            SequenceSlice(
                seq_id=seq.seq_id,
                token_ids=tuple(seq.token_ids[start:end]),
                start=start,
                block_tables=seq.tables.upto(end),
                samples=seq.sample_specs() if end == seq.num_tokens else (),
                prompt_targets=targets,
                prompt_logprobs=seq.prompt_logprobs if targets else None,
                pooling=seq.pooling if end == seq.num_tokens else None,
                embeds=seq.embeds(start, end),
                adapter=seq.adapter_digest,
                order=self.orders.get(seq),
            )
        )

    def add_sampled(self, seq: Sequence) -> None:
        """Take the token that the step in flight draws for a sequence, whose slot is writable."""
        self.num_tokens[seq] = 1
        self.slices.append(
            SequenceSlice(
                seq_id=seq.seq_id,
                token_ids=(SAMPLED,),
                start=seq.num_tokens,
                block_tables=seq.tables.ahead(seq.num_tokens),
                samples=seq.sample_specs(num_ahead=1),
                adapter=seq.adapter_digest,
            )
        )

    def build(self, step_id: int, follows: Followed | None, ended: tuple[SeqId, ...]) -> StepPlan:
        """Return the plan."""
        return StepPlan(
            step_id=step_id,
            slices=tuple(self.slices),
            block_copies=tuple(self.copies),
            follows=follows,
            ended=ended,
        )

    def _is_long(self, num_uncomputed: int) -> bool:
        return 0 < self._config.long_prefill_token_threshold < num_uncomputed
