"""Each rule against Transformers' processors and against plain Python, and what is drawn under them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.worker.step_plan import LogprobsSpec, SampleSpec, SamplingHistory
from baton_engine.sampling.logits_rules import LogitsRules, unpack_bits
from baton_engine.sampling.sampler import Sampler
from baton_engine.sampling.sampling_state import SamplingState
from baton_engine.sampling.token_logprobs import LogprobsMode
from tests.unit.engine.steps import make_history, make_spec

VOCAB_SIZE = 53
END = (3, 50)


def random_logits(seed: int, num_rows: int = 1) -> Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


def random_tokens(seed: int, count: int, below: int = VOCAB_SIZE) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, below, (count,), generator=generator).tolist())


def apply(logits: Tensor, *histories: SamplingHistory) -> Tensor:
    """Return the first rows after the rules of `histories`."""
    changed = logits.clone()
    assert LogitsRules().apply(changed, dict(enumerate(histories))) == {}
    return changed


def in_plain_python(logits: Sequence[float], history: SamplingHistory) -> list[float]:
    """The rules, token by token, in vLLM's order."""
    params, output = history.rules.params, list(history.output_token_ids)
    seen = {*history.prompt_token_ids, *output}
    changed = []
    for token_id, logit in enumerate(logits):
        is_excluded = params.allowed_token_ids is not None and token_id not in params.allowed_token_ids
        is_excluded |= any(
            [*output, token_id][-len(word) :] == list(word) for word in history.rules.bad_words
        )
        is_excluded |= len(output) < params.min_tokens and token_id in history.rules.ending_token_ids
        value = -math.inf if is_excluded else logit + (params.logit_bias or {}).get(token_id, 0.0)
        if token_id in seen:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * output.count(token_id)
        value -= params.presence_penalty * (token_id in output)
        changed.append(value)
    return changed


MIXES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.4, "frequency_penalty": -1.5},
    {"frequency_penalty": 0.7, "presence_penalty": 1.1},
    {"logit_bias": {4: 100.0, 5: -100.0, 52: 0.125}},
    {"allowed_token_ids": (0, 31, 32, 50, 52)},
    {"min_tokens": 9, "ending": END},
    {"min_tokens": 2, "ending": END},
    {"bad_words": ((1,), (0, 2), (2, 0, 1), (52,))},
    {
        "allowed_token_ids": tuple(range(0, 53, 2)),
        "bad_words": ((8,), (0, 2)),
        "min_tokens": 30,
        "ending": END,
        "logit_bias": {2: 3.0, 3: 4.0, 8: 5.0},
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": -0.2,
    },
]


@pytest.mark.parametrize("output_len", [0, 1, 8, 200])
def test_rules_are_those_of_plain_python_for_all_rows_of_a_step(output_len: int) -> None:
    logits = random_logits(output_len, len(MIXES) + 1)
    histories = [
        make_history(
            random_tokens(row, output_len, below=4 if row % 2 else VOCAB_SIZE),
            prompt=random_tokens(100 + row, 20),
            name=f"{row}",
            **mix,
        )
        for row, mix in enumerate(MIXES)
    ]
    changed = apply(logits, *histories)
    for row, history in enumerate(histories):
        expected = torch.tensor(in_plain_python(logits[row].tolist(), history))
        torch.testing.assert_close(changed[row], expected, atol=1e-5, rtol=1e-5)
    assert changed[-1].tolist() == logits[-1].tolist(), "a row without rules changed"


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 2.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    prompt, output, logits = random_tokens(1, 12), random_tokens(2, 9), random_logits(0)
    reference = RepetitionPenaltyLogitsProcessor(penalty)
    expected = reference(torch.tensor([prompt + output]), logits.clone())
    changed = apply(logits, make_history(output, prompt=prompt, repetition_penalty=penalty))
    torch.testing.assert_close(changed, expected, atol=0, rtol=0)


@pytest.mark.parametrize("num_output", [0, 3, 4, 5])
def test_min_tokens_are_those_of_transformers(num_output: int) -> None:
    prompt, output, logits = (5, 6), random_tokens(2, num_output), random_logits(0)
    reference = MinNewTokensLengthLogitsProcessor(len(prompt), 4, list(END))
    expected = reference(torch.tensor([prompt + output]), logits.clone())
    changed = apply(logits, make_history(output, prompt=prompt, min_tokens=4, ending=END))
    torch.testing.assert_close(changed, expected, atol=0, rtol=0)


def test_the_smallest_repetition_penalty_keeps_logits_finite_and_excluded_tokens_excluded() -> None:
    history = make_history(prompt=random_tokens(5, 20), repetition_penalty=5e-324, allowed_token_ids=(1, 2))
    (changed,) = apply(random_logits(6), history)
    assert changed.isfinite().nonzero().flatten().tolist() == [1, 2]
    assert (changed == -math.inf).sum() == VOCAB_SIZE - 2


@pytest.mark.parametrize("penalty", [5e-324, 1e-20, 1e20, 1e308])
@pytest.mark.parametrize("bias", [1e308, -1e308])
def test_the_largest_biases_and_penalties_leave_numbers_to_sample(penalty: float, bias: float) -> None:
    history = make_history(
        prompt=range(VOCAB_SIZE), repetition_penalty=penalty, logit_bias={1: bias, 2: bias}
    )
    logits = random_logits(6)
    logits[0, 3] = 0.0
    (changed,) = apply(logits, history)
    assert changed.isfinite().all()
    spec = make_spec(
        temperature=1e-5, top_p=0.9, min_p=0.1, history=history, logprobs=LogprobsSpec(num_top=2)
    )
    for mode in LogprobsMode:
        drawn = Sampler(mode=mode).sample(logits.clone(), [spec])
        assert 0 <= drawn.token_ids[0] < VOCAB_SIZE
        assert not any(math.isnan(value) for value in drawn.logprobs[0].logprobs)


def test_logit_bias_is_that_of_transformers() -> None:
    bias, logits = {0: 1.5, 7: -100.0, 52: 99.0}, random_logits(0)
    reference = SequenceBiasLogitsProcessor([[[token_id], value] for token_id, value in bias.items()])
    expected = reference(torch.tensor([[1, 2]]), logits.clone())
    torch.testing.assert_close(apply(logits, make_history((9,), logit_bias=bias)), expected, atol=0, rtol=0)


def test_the_end_of_thinking_is_alone_possible_whatever_else_is_said() -> None:
    budget = ThinkingBudget(num_tokens=2, start_token_ids=(), end_token_ids=(9, 10))
    others = {"allowed_token_ids": (1, 2), "logit_bias": {10: -100.0}, "bad_words": ((9, 10),)}
    logits = random_logits(0)
    within = apply(logits, make_history((1,), thinking=budget))
    assert within.tolist() == logits.tolist()
    over = apply(logits, make_history((1, 1, 9), thinking=budget, **others))
    assert over[0].isfinite().nonzero()[:, 0].tolist() == [10]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_all_is_excluded_the_row_alone_fails_and_its_fields_are_named(temperature: float) -> None:
    history = make_history((1,), allowed_token_ids=(7, 8), bad_words=((7,), (1, 8)))
    specs = [make_spec(temperature=temperature, history=each, top_p=0.5) for each in (history, None)]
    drawn = Sampler().sample(random_logits(0, num_rows=2), specs)
    assert list(drawn.failures) == [0]
    assert isinstance(drawn.failures[0], InvalidRequestError)
    assert "bad_words" in str(drawn.failures[0])
    assert 0 <= drawn.token_ids[1] < VOCAB_SIZE


def test_end_tokens_that_the_model_has_not_are_no_fault() -> None:
    logits = random_logits(0)
    changed = apply(logits, make_history(min_tokens=2, ending=(60, 3)))
    assert (changed != logits).nonzero()[:, 1].tolist() == [3]


def test_bits_are_unpacked_lowest_first() -> None:
    words = torch.tensor([[1, -1], [1 << 30 | 6, -(2**31)]], dtype=torch.int32)
    places = [row.nonzero()[:, 0].tolist() for row in unpack_bits(words)]
    assert places == [[0, *range(32, 64)], [1, 2, 30, 63]]


def test_rows_without_rules_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("rules were applied")

    monkeypatch.setattr(LogitsRules, "apply", refuse)
    monkeypatch.setattr(SamplingState, "__init__", refuse)
    assert len(Sampler().sample(random_logits(0, 3), [make_spec()] * 3).token_ids) == 3


OUTPUT = (0, 1, 1, 2)
COMBINATIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"frequency_penalty": 0.6}, {"temperature": 0.7}),
    ({"presence_penalty": 1.0, "repetition_penalty": 1.5}, {"top_k": 5}),
    ({"logit_bias": {0: -1.0, 7: 2.0}}, {"top_p": 0.8}),
    ({"allowed_token_ids": (0, 2, 4, 5, 7)}, {"min_p": 0.2, "temperature": 1.5}),
    ({"min_tokens": 5, "ending": (3, 4)}, {"top_k": 6, "top_p": 0.9}),
    (
        {"bad_words": ((2, 6), (5,)), "frequency_penalty": 0.4, "logit_bias": {6: 4.0, 1: 1.0}},
        {"temperature": 0.8, "min_p": 0.05, "top_k": 7, "top_p": 0.95},
    ),
]
CHI_SQUARE_999 = (10.8, 13.8, 16.3, 18.5, 20.5, 22.5, 24.3)
"""99.9 % of the distribution with 1, 2, … degrees of freedom."""


@pytest.mark.parametrize(("rules", "filters"), COMBINATIONS)
def test_draws_follow_the_distribution_that_rules_and_filters_leave(
    rules: dict[str, Any], filters: dict[str, Any]
) -> None:
    count, filters = 6000, {"temperature": 1.0, **filters}
    logits = torch.tensor([[0.5, 1.2, 0.8, 0.4, 0.1, 0.9, -0.2, 0.3]])
    history = make_history(OUTPUT, prompt=(3, 0), **rules)
    specs = [make_spec(position, seed=11, history=history, **filters) for position in range(count)]
    drawn = Counter(Sampler().sample(logits.repeat(count, 1), specs).token_ids.tolist())
    expected = probabilities(in_plain_python(logits[0].tolist(), history), specs[0])
    assert set(drawn) == set(expected)
    statistic = sum((drawn[token_id] - count * p) ** 2 / (count * p) for token_id, p in expected.items())
    assert statistic < CHI_SQUARE_999[len(expected) - 2]


def probabilities(logits: list[float], spec: SampleSpec) -> dict[int, float]:
    """Shares of the tokens that temperature, min_p, top_k and top_p leave, one after the other."""
    weights = {token_id: math.exp(logit / spec.temperature) for token_id, logit in enumerate(logits)}
    limit = spec.min_p * max(weights.values())
    kept = sorted((-weight, token_id) for token_id, weight in weights.items() if weight and weight >= limit)
    kept = kept[: spec.top_k or None]
    total, mass, left = -sum(weight for weight, _ in kept), 0.0, {}
    for weight, token_id in kept:
        if mass < spec.top_p * total:
            left[token_id] = -weight
        mass -= weight
    return {token_id: weight / sum(left.values()) for token_id, weight in left.items()}
