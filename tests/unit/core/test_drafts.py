"""Drafters, and the lengths of their drafts."""

from __future__ import annotations

from collections.abc import Sequence as Many
from random import Random

import pytest

from baton_core.worker.learned_rates import LearnedRates
from baton_core.worker.sequence import Sequence
from baton_core.worker.speculative_config import SpeculativeConfig, SpeculativeMethod, read_speculative_config
from baton_core.worker.step_plan import SequenceSlice, StepPlan, StepResult
from baton_worker.core.speculation import suffixes
from baton_worker.core.speculation.acceptance import MAX_EMPTY, REST, Acceptance, DraftRecord
from baton_worker.core.speculation.prompt_lookup import PromptLookup
from baton_worker.core.speculation.speculation import MAX_STEP_DRAFTS, Speculation
from baton_worker.core.speculation.step_times import MAX_SURPRISE, MAX_UNSEEN, MIN_SEEN, StepTimes
from baton_worker.core.speculation.suffixes import EarlierOutputs, SuffixDrafter
from tests.builders import make_sequence

NGRAM = SpeculativeConfig(method=SpeculativeMethod.NGRAM, num_speculative_tokens=4)
SUFFIX = read_speculative_config({"method": "suffix"})


# --- prompt lookup ---


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([1, 2, 3, 4, 1, 2], (3, 4, 1, 2)),
        ([1, 2, 9, 6, 1, 2, 8, 7, 1, 2], (9, 6, 1, 2)),
        ([5, 1, 2, 9, 6, 1, 2, 8, 6, 1, 2], (8, 6, 1, 2)),
        ([1, 2, 1, 2], (1, 2, 1, 2)),
        ([7, 7, 7], (7, 7, 7, 7)),
        ([1, 2, 3, 4], ()),
        ([2, 3, 1, 2], ()),
        ([1], ()),
    ],
    ids=["once", "the earliest", "the longest", "a loop", "one token", "nothing", "too short", "no text"],
)
def test_what_followed_the_last_tokens_before_is_drafted(text: list[int], draft: tuple[int, ...]) -> None:
    assert PromptLookup(2, 3).propose(text, 4) == draft


def test_a_match_is_one_of_whole_tokens() -> None:
    """In memory the bytes of 256 and 1 hold those of 1 and 0, one byte on."""
    assert PromptLookup(1, 1).propose([256, 1, 65536, 1], 1) == (65536,)
    assert PromptLookup(1, 1).propose([256, 65536, 1], 1) == ()


def test_a_text_that_grows_is_looked_up_as_one_that_was_whole() -> None:
    rng, text, lookup = Random(1), list[int](), PromptLookup(1, 4)
    for _ in range(200):
        text += rng.choices(range(4), k=rng.randint(1, 3))
        assert lookup.propose(text, 5) == PromptLookup(1, 4).propose(text, 5)


# --- suffixes ---


def suffix_draft(text: list[int], earlier: Many[tuple[int, ...]] = ()) -> tuple[int, ...]:
    assert SUFFIX is not None
    outputs = EarlierOutputs(100)
    for output in earlier:
        outputs.add(b"tenant", output)
    return SuffixDrafter(SUFFIX, outputs, b"tenant").propose(text, 8)


def test_the_most_frequent_tokens_behind_the_longest_match_are_drafted() -> None:
    assert suffix_draft([1, 2, 3, 5, 9, 1, 2, 3, 6, 9, 1, 2, 3, 6, 8, 1, 2, 3]) == (6, 9, 1)
    assert suffix_draft([4, 1, 2, 7, 7, 5, 1, 2, 8, 8, 4, 1, 2]) == (7, 7, 5), "as long as the match"
    assert suffix_draft([1, 2, 3, 4]) == suffix_draft([1]) == ()


def test_earlier_outputs_are_drafted_to_their_tenant_alone() -> None:
    assert SUFFIX is not None
    assert suffix_draft([5, 1, 2, 3], [(9, 1, 2, 3, 4, 6, 7, 8)]) == (4, 6, 7)
    outputs = EarlierOutputs(100)
    outputs.add(b"another", (9, 1, 2, 3, 4, 6, 7, 8))
    assert SuffixDrafter(SUFFIX, outputs, b"tenant").propose([5, 1, 2, 3], 8) == ()
    assert suffix_draft([1, 2], [(8, 1, 2)]) == (), "nothing is drafted over the end of an output"


def test_memory_of_earlier_outputs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffixes, "MAX_TEXT_TOKENS", 64)
    monkeypatch.setattr(suffixes, "MAX_TENANTS", 2)
    outputs = EarlierOutputs(5)
    for number in range(50):
        outputs.add(b"a", tuple(range(100 * number, 100 * number + 10 + number % 7)))
        assert len(outputs.text(b"a").token_ids) <= 64
    assert outputs.text(b"a").token_ids[-2] == 4909, "the last one is known"
    for tenant in (b"b", b"c"):
        outputs.add(tenant, (1, 2, 3))
    assert [len(outputs.text(tenant).token_ids) for tenant in (b"a", b"b", b"c")] == [0, 4, 4]


def test_the_newest_output_is_remembered_where_one_may_be() -> None:
    outputs = EarlierOutputs(1)
    for first in (10, 20, 30):
        outputs.add(b"a", (first, first + 1, first + 2))
        assert outputs.text(b"a").token_ids[:3] == [first, first + 1, first + 2]


# --- lengths ---


def test_a_draft_is_judged_by_the_tokens_that_follow() -> None:
    worker = Acceptance(0.5)
    record = DraftRecord(worker)
    record.propose((1, 2, 3), 2)
    record.judge([8, 8, 1, 2, 9])
    assert record.share == pytest.approx(0.85 * (0.85 * (0.85 * 0.5 + 0.15) + 0.15))
    record.propose((5,), 5)
    record.judge([8, 8, 1, 2, 9, 5, 6])
    assert DraftRecord(worker).share == worker.share < record.share


def test_times_of_steps_are_learned_by_size_and_guessed_until_then() -> None:
    times = StepTimes()
    guessed = times.relative(1, 13)
    assert guessed[0] == 1.0
    assert guessed[12] == pytest.approx(25 / 13)
    for _ in range(MAX_UNSEEN):
        times.observe(8, 0.010)
        times.observe(9, 0.030)
    learned = times.relative(8, 12)
    assert learned[:2] == [1.0, pytest.approx(3.0)], "what is just too large may cost much more"
    assert learned == sorted(learned)
    assert not times.is_due(8)
    assert times.is_due(1)
    times.observe(8, 10.0)
    assert times.relative(8, 9)[1] > 2.5, "a pause is no time of a step"


def test_first_steps_that_pay_for_more_than_themselves_are_soon_forgotten() -> None:
    times = StepTimes()
    for _ in range(MIN_SEEN):
        times.observe(1, 0.001)
    for seconds in (0.015, 0.001, 0.010, *[0.001] * (MIN_SEEN - 4)):
        times.observe(2, seconds)
    assert times.relative(1, 2)[1] == pytest.approx(14 / 13), "guessed until it was seen often enough"
    times.observe(2, 0.001)
    assert 1.0 <= times.relative(1, 2)[1] < 1.2 < MAX_SURPRISE


class Loop:
    """Drafts zeros."""

    def propose(self, token_ids: Many[int], num_tokens: int) -> tuple[int, ...]:
        """Return as many as there may be."""
        return (0,) * num_tokens


def decoding(name: str, num_outputs: int = 1, **params: int) -> Sequence:
    seq = make_sequence(name, prompt=6, **params)
    for _ in range(num_outputs):
        seq.append(0)
    return seq


def test_nothing_is_drafted_beyond_what_may_come() -> None:
    speculation = Speculation(NGRAM, 64, lambda _: Loop())
    seqs = [decoding("a", max_tokens=3), decoding("b", max_tokens=2), decoding("c", 57, max_tokens=99)]
    fresh = make_sequence("d", prompt=6)
    drafts = speculation.plan([*seqs, fresh], budget=100)
    assert {seq.seq_id.request_id: len(draft) for seq, draft in drafts.items()} == {"a": 1}
    assert len(speculation.plan([decoding("e")], budget=3)[decoding_of(speculation, "e")]) == 2
    many = [decoding(f"{number}") for number in range(100)]
    assert sum(map(len, speculation.plan(many, budget=1000).values())) <= MAX_STEP_DRAFTS


def decoding_of(speculation: Speculation, name: str) -> Sequence:
    return next(seq for seq in speculation._drafters if seq.seq_id.request_id == name)


@pytest.mark.parametrize("method", [one for one in SpeculativeMethod if one.needs_model])
def test_as_many_tokens_of_a_model_are_ordered_as_there_may_be(method: SpeculativeMethod) -> None:
    speculation = Speculation(
        SpeculativeConfig(method=method, num_speculative_tokens=4, model="drafts"), max_model_len=64
    )
    seqs = [decoding("a"), decoding("b", max_tokens=5), decoding("c", 55, max_tokens=99)]
    assert speculation.plan(seqs, budget=100) == {}, "none has come yet"
    for rows in range(3, 16):
        for _ in range(40):
            speculation.end_step(plan_of(rows), 1.0)
    for record in speculation._records.values():
        record._own.share = 1.0
    speculation._costs.observe(1e-4, 1.0)
    lengths = [order.num_tokens for order in speculation.orders(seqs).values()]
    assert lengths == [4, 2, 1], "the step itself samples one, and the last of a sequence is no draft"
    assert speculation.orders([]) == speculation.orders([decoding("d")]) == {}, "there is nothing to order"
    assert speculation.orders(seqs), "that says nothing of drafts"
    for seq in seqs:
        speculation.forget(seq)
    assert speculation.take_ended() == tuple(seq.seq_id for seq in seqs)


def test_drafts_that_cost_more_than_they_give_are_left_out() -> None:
    speculation = Speculation(NGRAM, 64, lambda _: Loop())
    seq = decoding("a")
    assert speculation.plan([seq], budget=100)
    for rows, seconds in [(1, 1.0), (2, 4.0), (5, 9.0)] * MIN_SEEN:
        speculation.end_step(plan_of(rows), seconds)
    assert speculation.plan([seq], budget=100) == {}
    for rows, seconds in [(1, 1.0), (2, 1.0), (5, 1.0)] * 40:
        speculation.end_step(plan_of(rows), seconds)
    assert speculation.plan([seq], budget=100) == {seq: (0,) * 4}


def plan_of(num_rows: int) -> StepPlan:
    piece = SequenceSlice(
        seq_id=make_sequence().seq_id,
        token_ids=(0,) * num_rows,
        start=0,
        block_tables=((0,),),
        num_drafts=num_rows - 1,
    )
    return StepPlan(step_id=1, slices=(piece,))


def test_a_verified_step_counts_as_the_steps_that_it_saves() -> None:
    rates, plan = LearnedRates(), plan_of(3)
    for _ in range(4):
        rates.end_step(plan, 0.03, StepResult(step_id=1, sampled=((0, 0, 0),)))
    assert rates.rates.decode_step_s == pytest.approx(0.01)


def test_text_without_drafts_is_asked_in_few_steps() -> None:
    class Nothing:
        num_asked = 0

        def propose(self, token_ids: Many[int], num_tokens: int) -> tuple[int, ...]:
            """Count the call."""
            self.num_asked += 1
            return ()

    drafter = Nothing()
    speculation, seq = Speculation(NGRAM, 200, lambda _: drafter), decoding("a", max_tokens=150)
    for _ in range(48):
        assert speculation.plan([seq], budget=100) == {}
        seq.append(0)
    assert drafter.num_asked == MAX_EMPTY + (48 - MAX_EMPTY) // REST


# --- verification ---


@pytest.mark.parametrize(
    ("sampled", "failed", "num_verified"),
    [
        ((5, 6, 7), (), 3),
        ((5, 9, 7), (), 2),
        ((4, 6, 7), (), 1),
        ((5, -1, 7), (), 1),
        ((5, 6, 7), (2,), 2),
        ((-1, 6, 7), (0,), 1),
    ],
)
def test_tokens_count_up_to_the_first_wrong_draft(
    sampled: tuple[int, ...], failed: tuple[int, ...], num_verified: int
) -> None:
    piece = SequenceSlice(
        seq_id=make_sequence().seq_id, token_ids=(3, 5, 6), start=0, block_tables=((0,),), num_drafts=2
    )
    assert piece.num_verified(sampled, failed) == num_verified


@pytest.mark.parametrize(
    "values", [{"suffix_decoding_max_tree_depth": 1}, {"suffix_decoding_max_spec_factor": 1e308}]
)
def test_the_bounds_of_suffix_decoding_draft(values: dict[str, float]) -> None:
    config = read_speculative_config({"method": "suffix", **values})
    drafter = SuffixDrafter(config, EarlierOutputs(8), b"")
    assert drafter.propose([1, 2, 3, 5, 9, 1, 2], 2) == (3, 5)
