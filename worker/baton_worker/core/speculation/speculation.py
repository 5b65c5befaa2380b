"""Speculation: which tokens a step verifies beside the next one of each sequence.

Drafts change no token: noise is a function of seed, position and token, so a verified position draws what it
would draw without them. Their lengths are chosen for speed alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Many
from math import log, log1p
from typing import Final, Protocol

from baton_core.worker.sequence import Sequence
from baton_core.worker.speculative_config import SpeculativeConfig, SpeculativeMethod
from baton_core.worker.step_plan import DraftOrder, SeqId, StepPlan, StepResult
from baton_worker.core.speculation.acceptance import REST, Acceptance, DraftRecord
from baton_worker.core.speculation.draft_counts import DraftCounts
from baton_worker.core.speculation.model_drafts import DraftCosts, ModelDrafts, Probes, best_length
from baton_worker.core.speculation.prompt_lookup import PromptLookup
from baton_worker.core.speculation.step_times import StepTimes
from baton_worker.core.speculation.suffixes import EarlierOutputs, SuffixDrafter

MAX_STEP_DRAFTS: Final = 128
"""Drafted tokens of one step."""
MIN_GAIN: Final = 1.05
"""Expected speed, in units of that without drafts, below which nothing is drafted."""
MAX_DECLINED: Final = 16
"""Steps in a row without a draft that is worth its rows, after which one step of `REST` drafts."""
Drafts = dict[Sequence, tuple[int, ...]]


class Drafter(Protocol):
    """Drafts for one sequence."""

    def propose(self, token_ids: Many[int], num_tokens: int) -> tuple[int, ...]: ...


MakeDrafter = Callable[[Sequence], Drafter]


class Speculation:
    """Drafts for the sequences of a worker; without a `config` there are none.

    Args:
        make_drafter: makes the drafter of a sequence; None: as the configuration says.
    """

    def __init__(
        self, config: SpeculativeConfig | None, max_model_len: int, make_drafter: MakeDrafter | None = None
    ) -> None:
        self._config = config
        self._max_model_len = max_model_len
        self._make_drafter = make_drafter or self._make_default
        self._earlier = EarlierOutputs(config.suffix_decoding_max_cached_requests if config else 0)
        self.counts = DraftCounts(config.num_speculative_tokens if config else 0)
        self._times = StepTimes()
        self._acceptance = Acceptance()
        self._num_plans = self._num_declined = 0
        """Steps, and those in a row in which no draft was worth its rows."""
        self._drafters: dict[Sequence, Drafter] = {}
        self._records: dict[Sequence, DraftRecord] = {}
        self._costs = DraftCosts()
        self._has_orders = True
        """The last step that asked a model for drafts found some worth their time, or none has asked."""
        self._probes = Probes()
        self._ended: list[SeqId] = []
        """Sequences that are over, of which the draft model has not heard."""

    def plan(self, seqs: Many[Sequence], budget: int) -> Drafts:
        """Draft for sequences that decode, as far as that is expected to be faster.

        Args:
            seqs: those that the step computes one token of.
            budget: tokens that the step may compute, with one of each of these.
        """
        if self._config is None or not seqs or len(seqs) > (self._config.disable_by_batch_size or len(seqs)):
            return {}
        self._num_plans += 1
        is_idle = self._num_declined >= MAX_DECLINED
        if self._config.method.needs_model:
            is_idle = not self._has_orders  # no drafts have come
        if is_idle and self._num_plans % REST != 0:
            return {}
        proposed = {seq: draft for seq in seqs if (draft := self._propose(seq, self._config))}
        if not proposed or self._times.is_due(len(seqs)):
            return {}
        drafts = self._worthwhile(proposed, len(seqs), min(MAX_STEP_DRAFTS, budget - len(seqs)))
        self._num_declined = 0 if drafts else self._num_declined + 1
        return drafts

    def orders(self, seqs: Many[Sequence]) -> dict[Sequence, DraftOrder]:
        """Order the drafts that a model is to make in this step for the next one, where that is faster.

        Where none were in the step before, one of `REST` steps asks again.
        """
        if self._config is None or not self._config.method.needs_model:
            return {}
        if len(seqs) > (self._config.disable_by_batch_size or len(seqs)):
            return {}
        if not self._has_orders and self._num_plans % REST != 0:
            return {}
        drafting = [
            seq
            for seq in seqs
            if isinstance(self._drafters.get(seq), ModelDrafts) and self._num_left(seq, 2) > 1
        ]
        if not drafting:
            return {}  # which says nothing of drafts
        lengths = self._best_lengths(drafting, len(seqs), self._config.num_speculative_tokens)
        if any(lengths.values()):
            self._probes.reset()
        elif (place := self._probes.next(len(drafting))) is not None:
            lengths[drafting[place]] = 1
        orders = {seq: self._order(seq, length) for seq, length in lengths.items() if length > 0}
        self._has_orders = bool(orders)
        return orders

    def _best_lengths(self, drafting: Many[Sequence], num_seqs: int, most: int) -> dict[Sequence, int]:
        """Return how many tokens to draft for each of the step's sequences that a model drafts for."""
        most = min(most, MAX_STEP_DRAFTS // max(1, num_seqs))
        times, cost = self._times.relative(num_seqs, num_seqs * (1 + most)), self._costs.relative
        lengths = {}
        for seq in drafting:
            best = best_length(self._records[seq].share, times, cost, num_seqs, MIN_GAIN)
            lengths[seq] = min(self._num_left(seq, most + 1) - 1, best)
        return lengths

    def _order(self, seq: Sequence, num_tokens: int) -> DraftOrder:
        drafter = self._drafters[seq]
        assert isinstance(drafter, ModelDrafts), "a model drafts for it"
        return drafter.order(seq.token_ids, num_tokens)

    def take(self, seq: Sequence, number: int, plan: StepPlan, result: StepResult) -> None:
        """Take what a model has drafted for a slice of a step, before its sequence has the sampled tokens."""
        if plan.slices[number].order is None:
            return
        if isinstance(drafter := self._drafters.get(seq), ModelDrafts):
            drafter.take(seq.num_tokens + len(result.sampled[number]), result.drafts.get(number))

    def take_ended(self) -> tuple[SeqId, ...]:
        """Return the sequences that are over since the last call, of which a draft model may have blocks."""
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    def end_step(self, plan: StepPlan, duration_s: float, drafting_s: float = 0.0) -> None:
        """Learn from a step that is back, if it computed no prompts; for `drafting_s` a model has drafted."""
        if self._config is None:
            return
        duration_s -= drafting_s
        orders = [piece.order for piece in plan.slices if piece.order is not None]
        if orders and drafting_s and not any(len(order.token_ids) > 1 for order in orders):
            self._costs.observe(drafting_s / max(order.num_tokens for order in orders), duration_s)
        if all(piece.num_scheduled_tokens == piece.num_drafts + 1 for piece in plan.slices):
            self._times.observe(sum(piece.num_scheduled_tokens for piece in plan.slices), duration_s)

    def forget(self, seq: Sequence) -> None:
        """A sequence is over; its output may be drafted for others."""
        if self._config is not None and self._config.method is SpeculativeMethod.SUFFIX:
            self._earlier.add(seq.root, tuple(seq.token_ids[seq.num_prompt_tokens :]))
        if self._config is not None and self._config.method.needs_model:
            self._ended.append(seq.seq_id)
        self._drafters.pop(seq, None)
        if (record := self._records.pop(seq, None)) is not None:
            record.judge(seq.token_ids)  # else those alone would count that did not end it

    def check_invariants(self, running: set[Sequence]) -> None:
        """Raise AssertionError when something is kept of a sequence that is over."""
        assert self._records.keys() == self._drafters.keys() <= running, "drafts of a sequence that is over"

    def _propose(self, seq: Sequence, config: SpeculativeConfig) -> tuple[int, ...]:
        """Return a draft for a sequence that has a token of its own here."""
        if seq.num_tokens <= seq.num_initial_tokens or seq.num_samples != 1:
            return ()
        if seq not in self._drafters:
            self._drafters[seq] = self._make_drafter(seq)
            self._records[seq] = DraftRecord(self._acceptance)
        record = self._records[seq]
        record.judge(seq.token_ids)
        if not config.method.needs_model and record.rests():
            return ()
        num_tokens = self._num_left(seq, config.num_speculative_tokens)
        draft = self._drafters[seq].propose(seq.token_ids, num_tokens) if num_tokens else ()
        record.propose(draft, seq.num_tokens)
        return draft

    def _make_default(self, seq: Sequence) -> Drafter:
        config = self._config
        assert config is not None, "nothing is drafted without a configuration"
        if config.method.needs_model:
            return ModelDrafts()
        if config.method is SpeculativeMethod.SUFFIX:
            return SuffixDrafter(config, self._earlier, seq.root)
        return PromptLookup(config.prompt_lookup_min, config.prompt_lookup_max)

    def _num_left(self, seq: Sequence, most: int) -> int:
        """Return how many tokens may be drafted before the one that ends a sequence by its length."""
        left = self._max_model_len - seq.num_tokens - 1
        if seq.params.max_tokens is not None:
            left = min(left, seq.params.max_tokens - seq.num_output_tokens - 1)
        return max(0, min(left, most))

    def _worthwhile(self, proposed: Drafts, num_seqs: int, most: int) -> Drafts:
        """Cut drafts to where the speeds of all sequences, of which a step has one token each, are best.

        A token at place i of a draft is right with the i-th power of the share of its sequence. The best ones
        are taken up to where the geometric mean of speeds is highest: a sequence without a draft is slowed by
        the drafts of others, so these have to gain more.
        """
        gains: list[tuple[float, int]] = []
        for order, (seq, draft) in enumerate(proposed.items()):
            share, expected = self._records[seq].share, 1.0
            for place in range(1, len(draft) + 1):
                gains.append((log1p(share**place / expected), -order))
                expected += share**place
        gains.sort(reverse=True)
        del gains[max(0, most) :]
        times = self._times.relative(num_seqs, num_seqs + len(gains))
        best, best_speed, gained = 0, log(MIN_GAIN), 0.0
        for number, (gain, _) in enumerate(gains, start=1):
            gained += gain / num_seqs
            if (speed := gained - log(times[number])) > best_speed:
                best, best_speed = number, speed
        lengths = Counter(-order for _, order in gains[:best])
        return {
            seq: draft[: lengths[order]]
            for order, (seq, draft) in enumerate(proposed.items())
            if lengths[order]
        }
