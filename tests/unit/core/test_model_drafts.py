"""Drafts of a model: how many are ordered, and which text they are of."""

from __future__ import annotations

import pytest

from baton_worker.core.speculation.model_drafts import (
    FIRST_COST,
    DraftCosts,
    ModelDrafts,
    Probes,
    best_length,
)
from baton_worker.core.speculation.step_times import MIN_SEEN

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
    told = [(step, place) for step in range(1, 250) if (place := probes.next(3)) is not None]
    assert told == [(8, 1), (24, 2), (56, 0), (120, 1), (184, 2), (248, 0)]
    probes.reset()
    assert [step for step in range(1, 10) if probes.next(1) is not None] == [8]


def test_a_pause_of_the_machine_is_no_cost() -> None:
    costs = DraftCosts()
    for _ in range(MIN_SEEN):
        assert costs.relative == FIRST_COST
        costs.observe(0.001, 0.004)
    assert costs.relative == pytest.approx(0.25)
    costs.observe(1.0, 0.004)
    assert costs.relative < 0.27
