"""Drafts of a model: how many are ordered, and which text they are of."""

from __future__ import annotations

import pytest

from baton_core.worker.sequence import Sequence
from baton_core.worker.speculative_config import SpeculativeConfig, SpeculativeMethod
from baton_core.worker.step_plan import SequenceSlice, StepPlan, StepResult
from baton_worker.core.speculation.model_drafts import (
    FIRST_COST,
    DraftCosts,
    ModelDrafts,
    Probes,
    best_length,
)
from baton_worker.core.speculation.speculation import Speculation
from baton_worker.core.speculation.step_times import MIN_SEEN
from tests.builders import make_sequence

FLAT = [1.0] * 9


@pytest.mark.parametrize(
    ("share", "times", "cost", "num_seqs", "expected"),
    [
        (0.9, FLAT, 0.0, 1, 8),
        (0.9, FLAT, 0.0, 4, 2),
        (0.9, FLAT, 0.2, 1, 7),
        (0.5, FLAT, 0.3, 1, 1),
        (0.5, FLAT, 0.5, 1, 0),
        (0.2, FLAT, 0.2, 1, 0),
        (0.9, [float(rows) for rows in range(1, 10)], 0.0, 1, 0),
        (1.0, [1.0], 0.0, 1, 0),
    ],
)
def test_as_much_is_ordered_as_is_fastest(
    share: float, times: list[float], cost: float, num_seqs: int, expected: int
) -> None:
    assert best_length(share, times, cost, num_seqs, 1.05) == expected


def test_a_draft_is_of_one_text_and_what_was_computed_is_not_ordered_again() -> None:
    drafts = ModelDrafts()
    assert drafts.propose([1, 2, 3], 4) == ()
    first = drafts.order([1, 2, 3], 2)
    assert (first.start, first.token_ids, first.num_tokens) == (0, (1, 2, 3), 2)
    drafts.take(4, (7, 8))
    assert drafts.propose([1, 2, 3, 4], 4) == (7, 8)
    assert drafts.propose([1, 2, 3, 4], 1) == (7,)
    assert drafts.propose([1, 2, 3, 4, 5], 4) == (), "made behind another text"
    second = drafts.order([1, 2, 3, 4, 5], 2)
    assert (second.start, second.token_ids) == (4, (5,))
    drafts.take(6, None)
    assert drafts.order([1, 2, 3, 4, 5, 6], 1).token_ids == (1, 2, 3, 4, 5, 6), "the model has lost it"


def test_what_is_not_worth_its_time_is_tried_ever_less_often_and_in_turn() -> None:
    probes = Probes()
    told = [(step, place) for step in range(1, 150) if (place := probes.next(3)) is not None]
    assert told == [(8, 1), (9, 1), (25, 2), (26, 2), (58, 0), (59, 0), (123, 1), (124, 1)]
    probes.reset()
    assert [step for step in range(1, 11) if probes.next(1) is not None] == [8, 9]


def test_a_pause_of_the_machine_is_no_cost() -> None:
    costs = DraftCosts()
    for _ in range(MIN_SEEN):
        assert costs.relative == FIRST_COST
        costs.observe(0.001, 0.004)
    assert costs.relative == pytest.approx(0.25)
    costs.observe(1.0, 0.004)
    assert costs.relative < 0.27


class Decoder:
    """Decodes zeros, one sequence at a time, with a model that drafts them.

    A step takes a second, and a drafted token `cost` of it.
    """

    def __init__(self, cost: float, *, is_right: bool) -> None:
        config = SpeculativeConfig(
            method=SpeculativeMethod.DRAFT_MODEL, num_speculative_tokens=4, model="drafts"
        )
        self.speculation = Speculation(config, max_model_len=1 << 20)
        self.cost, self.is_right = cost, is_right
        self.num_steps = self.num_ordered = 0

    def decode(self, seq: Sequence, num_steps: int) -> None:
        """Decode so many steps, or fewer if the sequence ends."""
        for _ in range(num_steps):
            drafts = self.speculation.plan([seq], budget=100).get(seq, ())
            order = self.speculation.orders([seq]).get(seq)
            num_ordered = order.num_tokens if order else 0
            piece = SequenceSlice(
                seq_id=seq.seq_id,
                token_ids=(0,) * (1 + len(drafts)),
                start=0,
                block_tables=((0,),),
                num_drafts=len(drafts),
                order=order,
            )
            drafting_s = self.cost * num_ordered
            sampled = (0,) * (1 + len(drafts) * self.is_right)
            made = {0: (0 if self.is_right else 1,) * num_ordered} if order else {}
            plan = StepPlan(step_id=1, slices=(piece,))
            result = StepResult(step_id=1, sampled=(sampled,), drafts=made)
            self.speculation.end_step(plan, 1.0 + drafting_s, drafting_s)
            self.speculation.take(seq, 0, plan, result)
            for token_id in sampled:
                seq.append(token_id)
            self.num_steps += 1
            self.num_ordered += num_ordered
            if seq.num_output_tokens >= (seq.params.max_tokens or 0):
                self.speculation.forget(seq)
                break


def test_a_model_whose_drafts_were_long_wrong_is_asked_again_once_they_are_right() -> None:
    decoder, seq = Decoder(0.05, is_right=False), make_sequence(prompt=6, max_tokens=100_000)
    decoder.decode(seq, 8000)
    assert decoder.num_ordered < 100
    decoder.is_right = True
    decoder.decode(seq, 2000)
    assert seq.num_output_tokens > 8000 + 2 * 2000


def test_probes_tell_what_a_token_costs() -> None:
    decoder = Decoder(0.01, is_right=False)
    decoder.decode(make_sequence(prompt=6, max_tokens=100_000), 4000)
    assert decoder.speculation._costs.relative == pytest.approx(0.01, abs=0.002)


def test_neither_the_first_step_of_a_sequence_nor_its_last_ones_end_the_drafts_of_others() -> None:
    decoder = Decoder(0.01, is_right=True)
    for number in range(20):
        decoder.decode(make_sequence(str(number), prompt=6, max_tokens=16), 16)
    assert decoder.num_steps < 20 * 6


def test_drafts_that_end_a_sequence_count_as_right() -> None:
    decoder = Decoder(0.01, is_right=True)
    for number in range(50):
        decoder.decode(make_sequence(str(number), prompt=6, max_tokens=4), 4)
    assert decoder.speculation._acceptance.share > 0.7
