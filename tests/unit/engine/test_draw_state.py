"""The state of a sequence's draws: advanced step by step or made anew, it says the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.requests.draw_rules import ThinkingBudget
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.worker.step_plan import DrawHistory
from baton_engine.draw_state import DrawStates
from baton_engine.logits_rules import LogitsRules
from baton_engine.structured.interface import EndTokens, Grammar, GrammarState, TokenMask
from baton_engine.token_counts import TokenCounts
from tests.unit.engine.steps import make_history, make_rules

VOCAB_SIZE = 40
END = 33
FORM = StructuredOutputsParams(regex="(ab)*")


class EvenOdd(Grammar):
    """The form of outputs whose tokens are even and odd in turns, below 32; they may end after an odd one."""

    num_bytes = 0

    def new_state(self) -> GrammarState:
        return _EvenOddState(EndTokens.of([END], VOCAB_SIZE))


class _EvenOddState(GrammarState):
    _is_odd = False

    def _advance(self, token_id: int) -> bool:
        if token_id >= 32 or token_id % 2 != self._is_odd:
            return False
        self._is_odd = not self._is_odd
        return True

    def _fill(self, row: TokenMask) -> None:
        bits = np.zeros(64, dtype=np.uint8)
        bits[self._is_odd : 32 : 2] = 1
        bits[END] = not self._is_odd
        row[:] = np.packbits(bits, bitorder="little").view(np.int32)


class Forms:
    def get(self, params: StructuredOutputsParams) -> Grammar:
        assert params == FORM
        return EvenOdd()


def apply(rules: LogitsRules, history: DrawHistory) -> torch.Tensor:
    logits = torch.linspace(-2.0, 3.0, VOCAB_SIZE)[None].clone()
    assert rules.apply(logits, {0: history}) == {}
    return logits[0]


def allowed(output: Sequence[int], states: DrawStates | None = None, **rules: Any) -> list[int]:
    """Which tokens may come next."""
    history = make_history(output, **rules)
    logits = apply(LogitsRules(states or DrawStates(forms=Forms())), history)
    return (logits > -torch.inf).nonzero()[:, 0].tolist()


RULES = {
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": -0.25},
    "output penalties": {"frequency_penalty": 0.5},
    "bad words": {"bad_words": ((3, 4), (4, 4, 5), (6,)), "min_tokens": 4, "ending": (END,)},
    "form": {"structured_outputs": FORM, "frequency_penalty": 1.0},
    "thinking": {"thinking": ThinkingBudget(num_tokens=3, start_token_ids=(2,), end_token_ids=(5, 6))},
    "thought, then form": {
        "structured_outputs": FORM,
        "thinking": ThinkingBudget(num_tokens=3, start_token_ids=(35, 36), end_token_ids=(37,)),
    },
}


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(1, 5), max_size=12))
def test_a_state_advanced_step_by_step_is_that_made_from_the_tokens(
    name: str, seed: int, cuts: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    rules, stepwise = make_rules(**RULES[name]), LogitsRules(DrawStates(forms=Forms()))
    output: list[int] = []
    for cut in cuts:
        advanced = apply(stepwise, make_history(output, rules=rules))
        anew = apply(LogitsRules(DrawStates(forms=Forms())), make_history(output, rules=rules))
        assert advanced.tolist() == anew.tolist()
        for _ in range(cut):
            may_come = allowed(output, rules=rules)
            output.append(int(rng.choice(may_come)))


def test_a_history_that_does_not_go_on_makes_the_state_anew() -> None:
    shared, rules = LogitsRules(), make_rules(frequency_penalty=1.0)
    for output in ((1, 2, 3), (1, 2), (1, 4), (1, 4, 4), (5, 5, 4)):
        of_another_request = replace(rules) if output[0] == 5 else rules
        history = make_history(output, rules=of_another_request)
        assert apply(shared, history).tolist() == apply(LogitsRules(), history).tolist()


def test_advancing_looks_at_new_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(TokenCounts, "add", lambda self, token_ids: counted.extend(token_ids))
    states, rules = DrawStates(), make_rules(presence_penalty=1.0)
    for length in (3, 4, 4, 6):
        states.take(make_history(range(length), rules=rules), VOCAB_SIZE)
    assert counted == [0, 1, 2, 3, 4, 5]


def test_the_sequences_that_drew_least_recently_are_forgotten() -> None:
    states = DrawStates(max_states=2)
    histories = {name: make_history((1,), name=name, frequency_penalty=1.0) for name in "abc"}
    first = {name: states.take(history, VOCAB_SIZE) for name, history in histories.items()}
    assert states.take(histories["a"], VOCAB_SIZE) is first["a"]
    states.trim(3)
    assert len(states) == 3, "a step keeps what it used"
    states.trim(1)
    assert len(states) == 2
    assert states.take(histories["a"], VOCAB_SIZE) is first["a"]
    assert states.take(histories["c"], VOCAB_SIZE) is first["c"]
    assert states.take(histories["b"], VOCAB_SIZE) is not first["b"]


def test_states_that_hold_too_many_tokens_are_forgotten_but_for_those_of_the_step() -> None:
    states, rules = DrawStates(max_tokens=20), make_rules(frequency_penalty=1.0)
    for length in (3, 8):
        for name in "ab":
            states.take(make_history(range(length), name=name, rules=rules), VOCAB_SIZE)
            states.trim(1)
    assert len(states) == 2, "what a sequence had before is counted no more"
    states.take(make_history(range(5), name="c", rules=rules), VOCAB_SIZE)
    states.trim(3)
    assert len(states) == 3
    states.trim(1)
    assert len(states) == 2
    states.take(make_history(range(50), name="b", rules=rules), VOCAB_SIZE)
    states.trim(1)
    assert len(states) == 1


@pytest.mark.parametrize("step", [1, 7, 40, 400])
def test_tokens_are_counted_one_by_one_and_many_at_once(step: int) -> None:
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(0, 500, (2, 400)).tolist()
    counts = TokenCounts(prompt)
    for start in range(0, 400, step):
        counts.add(output[start : start + step])
    found = dict(zip(counts.token_ids.tolist(), counts.counts.tolist(), strict=True))
    assert found == {token_id: output.count(token_id) for token_id in {*prompt, *output}}


def test_a_form_waits_for_the_end_of_a_thought() -> None:
    in_thought = {
        "structured_outputs": FORM,
        "thinking": ThinkingBudget(num_tokens=9, start_token_ids=(), end_token_ids=(37,)),
    }
    even, everything = [*range(0, 32, 2), END], [*range(VOCAB_SIZE)]
    assert allowed((), **in_thought) == everything
    assert allowed((1, 1), **in_thought) == everything
    assert allowed((1, 37), **in_thought) == even
    assert allowed((1, 37, 4), **in_thought) == [*range(1, 32, 2)]
    assert allowed((1, 37, 4, 5, END), **in_thought) == [END]


def test_an_output_may_begin_with_a_thought_or_with_the_form() -> None:
    rules = RULES["thought, then form"]
    even = [*range(0, 32, 2), END]
    assert allowed((), **rules) == [*even, 35]
    assert allowed((35,), **rules) == [36]
    assert allowed((35, 36), **rules) == [*range(VOCAB_SIZE)]
    assert allowed((35, 36, 1, 37), **rules) == even
    assert allowed((2,), **rules) == [*range(1, 32, 2)]
    assert allowed((2, 3), **rules) == even


@pytest.mark.parametrize(
    "others",
    [
        {"allowed_token_ids": (2, 4)},
        {"bad_words": tuple((2, token_id) for token_id in range(1, 32, 2))},
        {"allowed_token_ids": (2, 4), "min_tokens": 9, "ending": (0, END)},
    ],
)
def test_where_other_rules_leave_nothing_of_a_form_the_output_ends(others: dict[str, Any]) -> None:
    for output in ((2,), (2, END), (2, END, END)):
        assert allowed(output, structured_outputs=FORM, **others) == [END]


def test_a_token_that_does_not_fit_fails_the_row_until_its_history_fits_again() -> None:
    rules, given_rules = LogitsRules(DrawStates(forms=Forms())), make_rules(structured_outputs=FORM)
    logits = torch.zeros(1, VOCAB_SIZE)
    failures = rules.apply(logits, {0: make_history((2, 4), rules=given_rules)})
    assert "token 4 does not go on with the form" in failures[0]
    assert rules.apply(logits, {0: make_history((2, 3), rules=given_rules)}) == {}


def test_an_engine_without_forms_refuses_them() -> None:
    failures = LogitsRules().apply(torch.zeros(1, 8), {0: make_history(structured_outputs=FORM)})
    assert failures == {0: "structured_outputs is 'regex'; allowed: None, this engine compiles no forms"}
