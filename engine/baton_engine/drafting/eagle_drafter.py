"""Drafts by a head that reads hidden states of the model whose tokens it drafts.

It follows every sequence, as hidden states are known in the step that computes them alone. The states of a
prefix from the cache, or of a prompt that another worker has computed, are not: a head's sequence begins
where its target's was first computed here, with positions of its own, as rotary embeddings depend on
distances alone. Where nothing is ordered for long, only the states of the latest steps are kept, for the next
order: a head that begins there drafts nearly as well. Called from the engine thread only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Final

import msgspec
import torch
from torch import Tensor

from baton_core.worker.step_plan import SampleSpec, SeqId, SequenceSlice, StepPlan, StepResult
from baton_engine.drafting.draft_blocks import DraftBlocks
from baton_engine.drafting.eagle_head import EagleHead
from baton_engine.models.hidden_taps import HiddenTaps
from baton_engine.steps.decoded_slices import as_decoded
from baton_engine.steps.runner import ModelRunner

MAX_CHUNK: Final = 512
"""Tokens of a sequence that the head computes at a time."""
MAX_PENDING: Final = 32
"""Tokens of a sequence whose states are kept until a draft of it is ordered."""
MAX_UNFOLLOWED: Final = MAX_PENDING - 1
"""Steps without an order that are followed once there is one; after more, prompts are not followed either."""


@dataclass(slots=True)
class _Followed:
    """A sequence since its first token whose hidden state was seen."""

    start: int
    """Position of that token in the target's sequence."""
    end: int
    """Position behind the last token whose state was seen."""
    num_computed: int = 0
    """Tokens that the head has computed, of those whose states were seen."""
    states: list[Tensor] = field(default_factory=list)
    """The target's states of the tokens behind these, `[n, num_places * hidden_size]`."""
    token_ids: list[int] = field(default_factory=list)
    """The token behind each of them, as far as it is known."""

    @property
    def num_pending(self) -> int:
        """Tokens that can be computed: the token behind each is known."""
        return min(self.end - self.start - self.num_computed, len(self.token_ids))

    def take(self, number: int) -> tuple[Tensor, tuple[int, ...]]:
        """Take the first tokens that are pending: their states, and the tokens behind them."""
        states = torch.cat(self.states)
        token_ids = tuple(self.token_ids[:number])
        self.states = [states[number:].clone()]  # a part of a tensor would keep all of it in memory
        del self.token_ids[:number]
        self.num_computed += number
        return states[:number], token_ids


@dataclass(slots=True, kw_only=True)
class _Drafted:
    """A draft that grows."""

    number: int
    """The number of its slice in the plan."""
    seq_id: SeqId
    num_computed: int
    """Tokens of the head's sequence that are known to be right."""
    sample: SampleSpec
    """Parameters of the first drafted token."""
    num_wanted: int
    state: Tensor
    """The head's own hidden state behind the last token, `[1, hidden_size]`."""
    draft: list[int] = field(default_factory=list)

    def take(self, sampled: tuple[int, ...], number: int, state: Tensor) -> None:
        """Take the next tokens, of so many those that could be sampled, and the state behind the last."""
        self.draft += sampled
        self.state = state
        if len(sampled) < number:
            self.num_wanted = len(self.draft)


class EagleDrafter:
    """Drafts for the slices of a step that have an order.

    Args:
        runner: of the head, with a pool of `num_blocks` blocks that nobody else uses.
        taps: of the target.
        max_model_len: tokens of the longest sequence that the head computes; a longer one begins anew.
    """

    def __init__(
        self, runner: ModelRunner, head: EagleHead, taps: HiddenTaps, num_blocks: int, max_model_len: int
    ) -> None:
        self._runner = runner
        self._head = head
        self._taps = taps
        self._max_model_len = max_model_len
        self._followed: dict[SeqId, _Followed] = {}
        self._blocks = DraftBlocks(runner.spec, num_blocks, self._followed)
        self._unfollowed: deque[tuple[StepPlan, Tensor, StepResult]] = deque(maxlen=MAX_UNFOLLOWED)
        """The latest steps, none with an order or a prompt, and the states of their tokens."""
        self._num_unordered = 0
        """Steps since the last order."""

    @torch.inference_mode()
    def draft(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Return the result of the step that was computed last with the drafts that its plan orders."""
        for seq_id in plan.ended:
            self._blocks.drop(seq_id)
        has_order = any(piece.order is not None for piece in plan.slices)
        self._num_unordered = 0 if has_order else self._num_unordered + 1
        if self._num_unordered > MAX_UNFOLLOWED and not _is_decode(plan):
            return result
        begun_s = time.perf_counter()
        states = self._taps.states_of_step(sum(piece.num_scheduled_tokens for piece in plan.slices))
        if not has_order and _is_decode(plan):
            self._unfollowed.append((plan, states, result))
            return result
        self._blocks.begin_step()
        present = {piece.seq_id for piece in plan.slices}
        for step in (*self._unfollowed, (plan, states, result)):
            self._follow_step(*step, present)
        self._forget_steps(present)
        drafts = self._begin_drafts(plan, result)
        while growing := [one for one in drafts if len(one.draft) < one.num_wanted]:
            self._extend(growing)
        self._compute_pending(plan)
        made = {one.number: tuple(one.draft) for one in drafts}
        return replace(result, drafts=made, drafting_s=time.perf_counter() - begun_s) if drafts else result

    def check_invariants(self, num_blocks: int) -> None:
        """Raise AssertionError unless each of `num_blocks` blocks is free or of one sequence."""
        self._blocks.check_invariants(num_blocks)

    def _forget_steps(self, followed: Set[SeqId]) -> None:
        """Keep the steps of other sequences alone, as the stages of a pipeline compute them in turn."""
        others = [
            step for step in self._unfollowed if followed.isdisjoint(piece.seq_id for piece in step[0].slices)
        ]
        self._unfollowed.clear()
        self._unfollowed.extend(others)

    def _follow_step(self, plan: StepPlan, states: Tensor, result: StepResult, present: Set[SeqId]) -> None:
        """Follow the sequences of a step that are `present` in the current one."""
        row = 0
        for number, piece in enumerate(plan.slices):
            rows, row = states[row : row + piece.num_scheduled_tokens], row + piece.num_scheduled_tokens
            if piece.embeds or number in result.failures:
                self._blocks.drop(piece.seq_id)
            elif piece.seq_id in present:
                self._follow(piece, result.sampled[number], rows)

    def _follow(self, piece: SequenceSlice, sampled: tuple[int, ...], rows: Tensor) -> None:
        """Keep the states of a slice's tokens, as far as they are right, and the tokens behind them."""
        one = self._followed.get(piece.seq_id)
        if one is None or one.end != piece.start:
            one = self._restart(piece.seq_id, piece.start)
        num_right = len(sampled) if piece.num_drafts else piece.num_scheduled_tokens
        behind = sampled[-1:] if piece.num_drafts else sampled[:1]
        token_ids = (*piece.token_ids[:num_right], *behind)
        start = piece.start
        if start + num_right - one.start > self._max_model_len - MAX_PENDING:
            num_left_out = max(0, num_right - self._max_model_len // 2)
            start, token_ids, rows = start + num_left_out, token_ids[num_left_out:], rows[num_left_out:]
            num_right -= num_left_out
            one = self._restart(piece.seq_id, start)
        known_end = one.start + one.num_computed + 1 + len(one.token_ids)
        one.token_ids += token_ids[known_end - start :]
        one.states.append(rows[:num_right].clone())
        one.end = start + num_right

    def _restart(self, seq_id: SeqId, start: int) -> _Followed:
        self._blocks.drop(seq_id)
        one = self._followed[seq_id] = _Followed(start=start, end=start)
        return one

    def _begin_drafts(self, plan: StepPlan, result: StepResult) -> list[_Drafted]:
        """Return drafts of one token each, for the slices with an order, as far as there is room."""
        begun: list[tuple[int, SequenceSlice, int]] = []
        for number, piece in enumerate(plan.slices):
            one = self._followed.get(piece.seq_id)
            if piece.order is None or one is None or not one.num_pending or not result.sampled[number]:
                continue
            num_tokens = one.num_computed + one.num_pending
            num_wanted = min(piece.order.num_tokens, self._max_model_len - num_tokens)
            if num_wanted < 1 or not self._blocks.reserve(piece.seq_id, num_tokens + num_wanted - 1):
                self._blocks.drop(piece.seq_id)
                continue
            self._shorten(piece.seq_id, one, MAX_CHUNK)
            begun.append((number, piece, num_wanted))
        begun = [one for one in begun if one[1].seq_id in self._followed]
        if not begun:
            return []
        pieces, inputs, drafts = [], [], []
        for number, piece, num_wanted in begun:
            one = self._followed[piece.seq_id]
            start = one.num_computed
            states, token_ids = one.take(one.num_pending)
            sample = msgspec.structs.replace(
                piece.samples[0], position=one.end + 1, logprobs=None, history=None
            )
            pieces.append(self._slice(piece.seq_id, start, token_ids, sample))
            inputs.append(self._head.combine(states))
            drafts.append(
                _Drafted(
                    number=number,
                    seq_id=piece.seq_id,
                    num_computed=one.num_computed,
                    sample=sample,
                    num_wanted=num_wanted,
                    state=inputs[-1],
                )
            )
        self._draft_first(drafts, pieces, inputs)
        return drafts

    def _draft_first(self, drafts: list[_Drafted], pieces: list[SequenceSlice], inputs: list[Tensor]) -> None:
        """Compute a slice of each draft's sequence, and draft the token behind it."""
        slices = as_decoded(pieces, self._runner.max_captured_rows)
        result = self._run(list(chain.from_iterable(slices)), inputs)
        ends = list(accumulate(map(len, slices)))
        states = self._head.outputs[[end - 1 for end in ends]]
        for place, (one, end) in enumerate(zip(drafts, ends, strict=True)):
            one.take(result.sampled[end - 1], 1, states[place : place + 1])

    def _extend(self, drafts: list[_Drafted]) -> None:
        """Draft as many tokens more of each as all of them want."""
        number = min(one.num_wanted - len(one.draft) for one in drafts)
        slices = []
        for one in drafts:
            start = one.num_computed + len(one.draft) - 1
            sample = msgspec.structs.replace(one.sample, position=one.sample.position + len(one.draft))
            slices.append(self._slice(one.seq_id, start, tuple(one.draft[-1:]), sample, number))
        self._head.put_inputs(torch.cat([one.state for one in drafts]))
        tokens = self._runner.generate(tuple(slices), number)
        states = self._head.outputs[: len(drafts)].clone()
        for place, (one, sampled) in enumerate(zip(drafts, tokens, strict=True)):
            one.take(sampled, number, states[place : place + 1])

    def _compute_pending(self, plan: StepPlan) -> None:
        """Compute the sequences of the step that have many tokens pending."""
        for piece in plan.slices:
            one = self._followed.get(piece.seq_id)
            if one is None or one.num_pending <= MAX_PENDING:
                continue
            if self._blocks.reserve(piece.seq_id, one.num_computed + one.num_pending):
                self._shorten(piece.seq_id, one, 0)
            else:
                self._blocks.drop(piece.seq_id)

    def _shorten(self, seq_id: SeqId, one: _Followed, most: int) -> None:
        """Compute the first pending tokens of a sequence, until at most `most` are left."""
        while one.num_pending > most:
            start = one.num_computed
            states, token_ids = one.take(min(MAX_CHUNK, one.num_pending - most))
            self._run([self._slice(seq_id, start, token_ids, None)], [self._head.combine(states)])

    def _slice(
        self,
        seq_id: SeqId,
        start: int,
        token_ids: tuple[int, ...],
        sample: SampleSpec | None,
        num_steps: int = 1,
    ) -> SequenceSlice:
        """Return a slice with blocks for so many steps."""
        return SequenceSlice(
            seq_id=seq_id,
            token_ids=token_ids,
            start=start,
            block_tables=self._blocks.tables(seq_id, start + len(token_ids) + num_steps - 1),
            samples=() if sample is None else (sample,),
        )

    def _run(self, slices: Sequence[SequenceSlice], inputs: Sequence[Tensor]) -> StepResult:
        self._head.put_inputs(torch.cat(list(inputs)))
        return self._runner.execute(StepPlan(step_id=0, slices=tuple(slices)))


def _is_decode(plan: StepPlan) -> bool:
    """True if each slice is one token and drafted ones."""
    return all(piece.num_scheduled_tokens == piece.num_drafts + 1 for piece in plan.slices)
