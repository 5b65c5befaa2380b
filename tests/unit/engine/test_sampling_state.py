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

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.worker.step_plan import SamplingHistory
from baton_engine.sampling.logits_rules import LogitsRules
from baton_engine.sampling.sampling_state import SamplingStates
from baton_engine.sampling.token_counts import TokenCounts
from baton_engine.structured.interface import EndTokens, Grammar, GrammarState, TokenMask
from tests.unit.engine.steps import make_history, make_rules

VOCAB_SIZE = 40
END = 33
GRAMMAR = StructuredOutputsParams(regex="(ab)*")


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


class NoWayOn(EvenOdd):
    """The same form in a vocabulary whose odd tokens are none."""

    def new_state(self) -> GrammarState:
        return _NoWayOnState(EndTokens.of([END], VOCAB_SIZE))


class _NoWayOnState(_EvenOddState):
    def _fill(self, row: TokenMask) -> None:
        super()._fill(row)
        if self._is_odd:
            row.fill(0)


class Grammars:
    def get(self, params: StructuredOutputsParams) -> Grammar:
        assert params == GRAMMAR
        return EvenOdd()

    def refuse(self, params: StructuredOutputsParams, error: InvalidRequestError) -> None:
        raise AssertionError(f"{params} is quick")


def apply(rules: LogitsRules, history: SamplingHistory) -> torch.Tensor:
    logits = torch.linspace(-2.0, 3.0, VOCAB_SIZE)[None].clone()
    assert rules.apply(logits, {0: history}) == {}
    return logits[0]


def failure_of(output: Sequence[int], **rules: Any) -> Exception | None:
    """The error of a row that may have no token."""
    logits_rules = LogitsRules(SamplingStates(grammars=Grammars()))
    return logits_rules.apply(torch.zeros(1, VOCAB_SIZE), {0: make_history(output, **rules)}).get(0)


def allowed(output: Sequence[int], states: SamplingStates | None = None, **rules: Any) -> list[int]:
    """Return the tokens that may come next."""
    history = make_history(output, **rules)
    logits = apply(LogitsRules(states or SamplingStates(grammars=Grammars())), history)
    return (logits > -torch.inf).nonzero()[:, 0].tolist()


RULES = {
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": -0.25},
    "output penalties": {"frequency_penalty": 0.5},
    "bad words": {"bad_words": ((3, 4), (4, 4, 5), (6,)), "min_tokens": 4, "ending": (END,)},
    "form": {"structured_outputs": GRAMMAR, "frequency_penalty": 1.0},
    "thinking": {"thinking": ThinkingBudget(num_tokens=3, start_token_ids=(2,), end_token_ids=(5, 6))},
    "thought, then form": {
        "structured_outputs": GRAMMAR,
        "thinking": ThinkingBudget(num_tokens=3, start_token_ids=(35, 36), end_token_ids=(37,)),
    },
}


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(1, 5), max_size=12))
@pytest.mark.slow
def test_a_state_advanced_step_by_step_is_that_made_from_the_tokens(
    name: str, seed: int, cuts: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    rules, stepwise = make_rules(**RULES[name]), LogitsRules(SamplingStates(grammars=Grammars()))
    output: list[int] = []
    for cut in cuts:
        advanced = apply(stepwise, make_history(output, rules=rules))
        anew = apply(LogitsRules(SamplingStates(grammars=Grammars())), make_history(output, rules=rules))
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
    states, rules = SamplingStates(), make_rules(presence_penalty=1.0)
    for length in (3, 4, 4, 6):
        states.take(make_history(range(length), rules=rules), VOCAB_SIZE)
    assert counted == [0, 1, 2, 3, 4, 5]


def test_the_sequences_that_drew_least_recently_are_forgotten() -> None:
    states = SamplingStates(max_states=2)
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


@pytest.mark.parametrize(("is_shared", "num_kept"), [(False, 2), (True, 3)])
def test_states_whose_grammars_take_too_much_memory_are_forgotten(is_shared: bool, num_kept: int) -> None:
    class Sized(Grammars):
        shared = EvenOdd()

        def get(self, params: StructuredOutputsParams) -> Grammar:
            grammar = self.shared if is_shared else EvenOdd()
            grammar.num_bytes = 10
            return grammar

    states = SamplingStates(grammars=Sized(), max_grammar_bytes=20)
    for length in (0, 1):
        for name in "abc":
            states.take(make_history((2,) * length, name=name, structured_outputs=GRAMMAR), VOCAB_SIZE)
    states.trim(3)
    assert len(states) == 3, "a step keeps what it used"
    states.trim(1)
    assert len(states) == num_kept, "a grammar counts once"


def test_states_that_hold_too_many_tokens_are_forgotten_but_for_those_of_the_step() -> None:
    states, rules = SamplingStates(max_tokens=20), make_rules(frequency_penalty=1.0)
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
    in_thought: dict[str, Any] = {
        "structured_outputs": GRAMMAR,
        "thinking": ThinkingBudget(num_tokens=9, start_token_ids=(), end_token_ids=(37,)),
    }
    may_end = replace(in_thought["thinking"], may_end=True)
    even, everything = [*range(0, 32, 2), END], [*range(VOCAB_SIZE)]
    unfinished = [token_id for token_id in everything if token_id != END]
    for output in ((), (1, 1)):
        assert allowed(output, **in_thought) == unfinished
        assert allowed(output, **in_thought | {"thinking": may_end}) == everything
    failure = failure_of((), **in_thought, allowed_token_ids=(END,))
    assert "allowed_token_ids" in str(failure)
    assert "structured_outputs.regex" in str(failure)
    assert allowed((1, 37), **in_thought) == even
    assert allowed((1, 37, 4), **in_thought) == [*range(1, 32, 2)]
    assert allowed((1, 37, 4, 5, END), **in_thought) == [END]


def test_an_output_may_begin_with_a_thought_or_with_the_form() -> None:
    rules = RULES["thought, then form"]
    even = [*range(0, 32, 2), END]
    assert allowed((), **rules) == [*even, 35]
    assert allowed((35,), **rules) == [36]
    assert allowed((35, 36), **rules) == [token_id for token_id in range(VOCAB_SIZE) if token_id != END]
    assert allowed((35, 36, 1, 37), **rules) == even
    assert allowed((2,), **rules) == [*range(1, 32, 2)]
    assert allowed((2, 3), **rules) == even


@pytest.mark.parametrize(
    ("others", "fields"),
    [
        ({"allowed_token_ids": (2, 4)}, ["allowed_token_ids"]),
        ({"bad_words": tuple((2, token_id) for token_id in range(1, 32, 2))}, ["bad_words"]),
        (
            {"allowed_token_ids": (2, 4), "min_tokens": 9, "ending": (0, END)},
            ["allowed_token_ids", "min_tokens"],
        ),
    ],
)
def test_where_other_rules_leave_nothing_of_a_form_its_request_ends_with_an_error(
    others: dict[str, Any], fields: list[str]
) -> None:
    failure = failure_of((2,), structured_outputs=GRAMMAR, **others)
    assert isinstance(failure, InvalidRequestError)
    assert failure.field == fields[0]
    for field in (*fields, "structured_outputs.regex", "after 1 tokens"):
        assert field in str(failure)


def test_a_form_that_is_complete_ends_where_other_rules_leave_nothing_to_go_on_with() -> None:
    assert allowed((2, 3), structured_outputs=GRAMMAR, allowed_token_ids=(3, 5)) == [END]
    assert allowed((2, 3), structured_outputs=GRAMMAR, allowed_token_ids=(2, 3)) == [2]
    assert allowed((2, 3, END), structured_outputs=GRAMMAR, allowed_token_ids=(3,), min_tokens=9) == [END]


@pytest.mark.parametrize(
    ("rules", "fields"),
    [
        (
            {"structured_outputs": GRAMMAR, "allowed_token_ids": (3,), "min_tokens": 9, "ending": (END,)},
            ["allowed_token_ids", "min_tokens", "structured_outputs.regex"],
        ),
        ({"allowed_token_ids": (7, 8), "bad_words": ((7,), (3, 8))}, ["allowed_token_ids", "bad_words"]),
        (
            {"allowed_token_ids": (END,), "min_tokens": 3, "ending": (END,)},
            ["allowed_token_ids", "min_tokens"],
        ),
        ({"bad_words": tuple((token_id,) for token_id in range(VOCAB_SIZE))}, ["bad_words"]),
    ],
)
def test_rules_that_leave_no_token_are_named(rules: dict[str, Any], fields: list[str]) -> None:
    output = (2, 3)
    failure = failure_of(output, **rules)
    assert isinstance(failure, InvalidRequestError)
    assert failure.field == fields[0]
    assert all(field in str(failure) for field in fields)


def test_a_form_that_no_token_goes_on_with_is_named() -> None:
    class DeadEnd(Grammars):
        def get(self, params: StructuredOutputsParams) -> Grammar:
            return NoWayOn()

    failures = LogitsRules(SamplingStates(grammars=DeadEnd())).apply(
        torch.zeros(1, VOCAB_SIZE), {0: make_history((2,), structured_outputs=GRAMMAR)}
    )
    assert isinstance(failures[0], InvalidRequestError)
    assert failures[0].field == "structured_outputs.regex"


def test_the_end_of_a_thought_is_forced_where_other_rules_leave_nothing() -> None:
    budget = ThinkingBudget(num_tokens=1, start_token_ids=(), end_token_ids=(9,))
    assert allowed((1,), thinking=budget, allowed_token_ids=(7,), bad_words=((7,),)) == [9]


def test_a_token_that_does_not_fit_fails_the_row_until_its_history_fits_again() -> None:
    rules, given_rules = (
        LogitsRules(SamplingStates(grammars=Grammars())),
        make_rules(structured_outputs=GRAMMAR),
    )
    logits = torch.zeros(1, VOCAB_SIZE)
    failures = rules.apply(logits, {0: make_history((2, 4), rules=given_rules)})
    assert "token 4 does not fit the grammar" in str(failures[0])
    assert rules.apply(logits, {0: make_history((2, 3), rules=given_rules)}) == {}


def test_an_engine_without_forms_refuses_them() -> None:
    failures = LogitsRules().apply(torch.zeros(1, 8), {0: make_history(structured_outputs=GRAMMAR)})
    assert (
        str(failures[0]) == "structured_outputs is 'regex'; allowed: None, this engine compiles no grammars"
    )
