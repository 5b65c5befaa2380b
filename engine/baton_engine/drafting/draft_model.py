"""A small model that drafts the next tokens of sequences, behind those that a step has sampled for them.

It has a KV pool and blocks of its own. A sequence's tokens are computed once each, those of a prompt when the
first draft is ordered. Drafted tokens are computed too, and again once it is known which ones are right. A
token is drafted by the noise that samples it, so the more alike two models are, the more drafts are right.
Called from the engine thread only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Final

import msgspec

from baton_core.worker.step_plan import (
    DraftOrder,
    SampleSpec,
    SeqId,
    SequenceSlice,
    StepPlan,
    StepResult,
)
from baton_engine.drafting.draft_blocks import DraftBlocks
from baton_engine.steps.decoded_slices import as_decoded
from baton_engine.steps.runner import ModelRunner

MAX_CHUNK: Final = 512
"""Tokens of a sequence that are computed at a time."""


@dataclass(slots=True, kw_only=True)
class _Drafted:
    """A draft that grows."""

    number: int
    """The number of its slice in the plan."""
    seq_id: SeqId
    token_ids: tuple[int, ...]
    """The last tokens of the sequence, which are not computed."""
    sample: SampleSpec
    """Parameters of the first drafted token."""
    num_wanted: int
    draft: list[int] = field(default_factory=list)

    def take(self, sampled: tuple[int, ...], number: int) -> None:
        """Take the next tokens: of so many, those that could be sampled."""
        self.draft += sampled
        if len(sampled) < number:
            self.num_wanted = len(self.draft)


class DraftModel:
    """Drafts for the slices of a step that have an order.

    Args:
        runner: of the model, with a pool of `num_blocks` blocks that nobody else uses.
        max_model_len: tokens of the longest sequence that it computes.
    """

    def __init__(self, runner: ModelRunner, num_blocks: int, max_model_len: int) -> None:
        self._runner = runner
        self._max_model_len = max_model_len
        self._num_computed: dict[SeqId, int] = {}
        """Tokens of each sequence that has blocks, as far as the model has computed them."""
        self._blocks = DraftBlocks(runner.spec, num_blocks, self._num_computed)

    def draft(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Return the result of a step with the drafts that its plan orders."""
        for seq_id in plan.ended:
            self._blocks.drop(seq_id)
        begun_s = time.perf_counter()
        self._blocks.begin_step()
        drafts = [
            drafted
            for number, piece in enumerate(plan.slices)
            if piece.order is not None and result.sampled[number]
            if (drafted := self._begin(number, piece, piece.order, result.sampled[number])) is not None
        ]
        if not drafts:
            return result
        self._compute_contexts(drafts)
        self._draft_first(drafts)
        while growing := [one for one in drafts if len(one.draft) < one.num_wanted]:
            self._extend(growing)
        made = {one.number: tuple(one.draft) for one in drafts}
        return replace(result, drafts=made, drafting_s=time.perf_counter() - begun_s)

    def check_invariants(self, num_blocks: int) -> None:
        """Raise AssertionError unless each of `num_blocks` blocks is free or of one sequence."""
        self._blocks.check_invariants(num_blocks)

    def _begin(
        self, number: int, piece: SequenceSlice, order: DraftOrder, sampled: tuple[int, ...]
    ) -> _Drafted | None:
        """Return a draft without tokens; None where the sequence is not known so far, or has no room."""
        seq_id = piece.seq_id
        if order.start not in (0, self._num_computed.get(seq_id, 0)):
            self._blocks.drop(seq_id)
            return None
        token_ids = (*order.token_ids, *sampled)
        num_tokens = order.start + len(token_ids)
        num_wanted = min(order.num_tokens, self._max_model_len - num_tokens)
        if num_wanted < 1 or not self._blocks.reserve(seq_id, num_tokens + num_wanted - 1):
            self._blocks.drop(seq_id)
            return None
        self._num_computed[seq_id] = order.start
        sample = msgspec.structs.replace(piece.samples[0], position=num_tokens, logprobs=None, history=None)
        return _Drafted(
            number=number, seq_id=seq_id, token_ids=token_ids, sample=sample, num_wanted=num_wanted
        )

    def _compute_contexts(self, drafts: Iterable[_Drafted]) -> None:
        """Compute all but the last few tokens of long contexts, chunk by chunk."""
        for one in drafts:
            while len(one.token_ids) > MAX_CHUNK:
                chunk, one.token_ids = one.token_ids[:MAX_CHUNK], one.token_ids[MAX_CHUNK:]
                self._run([self._slice(one, chunk, self._num_computed[one.seq_id], ())])
                self._num_computed[one.seq_id] += MAX_CHUNK

    def _draft_first(self, drafts: list[_Drafted]) -> None:
        """Compute the last tokens of each sequence, and draft one behind them."""
        pieces = [
            self._slice(one, one.token_ids, self._num_computed[one.seq_id], (one.sample,)) for one in drafts
        ]
        slices = as_decoded(pieces, self._runner.max_captured_rows)
        result = self._run(list(chain.from_iterable(slices)))
        for one, end in zip(drafts, accumulate(map(len, slices)), strict=True):
            self._num_computed[one.seq_id] += len(one.token_ids)
            one.take(result.sampled[end - 1], 1)

    def _extend(self, drafts: list[_Drafted]) -> None:
        """Draft as many tokens more of each as all of them want."""
        number = min(one.num_wanted - len(one.draft) for one in drafts)
        slices = []
        for one in drafts:  # what is drafted is computed, and again once it is known to be right
            start = self._num_computed[one.seq_id] + len(one.draft) - 1
            sample = msgspec.structs.replace(one.sample, position=one.sample.position + len(one.draft))
            slices.append(self._slice(one, (one.draft[-1],), start, (sample,), number))
        for one, tokens in zip(drafts, self._runner.generate(tuple(slices), number), strict=True):
            one.take(tokens, number)

    def _slice(
        self,
        one: _Drafted,
        token_ids: tuple[int, ...],
        start: int,
        samples: tuple[SampleSpec, ...],
        num_steps: int = 1,
    ) -> SequenceSlice:
        """Return a slice with blocks for so many steps."""
        return SequenceSlice(
            seq_id=one.seq_id,
            token_ids=token_ids,
            start=start,
            block_tables=self._blocks.tables(one.seq_id, start + len(token_ids) + num_steps - 1),
            samples=samples,
        )

    def _run(self, slices: list[SequenceSlice]) -> StepResult:
        return self._runner.execute(StepPlan(step_id=0, slices=tuple(slices)))
