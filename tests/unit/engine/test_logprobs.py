"""Log-probabilities against Transformers' log-softmax, and the order of ties."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.step_plan import LogprobsSpec
from baton_engine.sampling import token_logprobs
from baton_engine.sampling.logits_rules import LogitsRules
from baton_engine.sampling.sampler import Sampler
from baton_engine.sampling.sampling_state import SamplingStates
from baton_engine.sampling.token_logprobs import LogprobsMode, gather_logprobs
from baton_engine.steps.runner import ModelRunner
from tests.models import make_prompt, reference_logits
from tests.unit.engine.steps import make_history, make_plan, make_runner, make_slice, make_spec
from tests.unit.engine.test_sampling_state import GRAMMAR, VOCAB_SIZE, Grammars

PROMPT = make_prompt(21, seed=3)


@pytest.fixture(scope="module")
def runner(model_folder: Callable[[str], Path]) -> ModelRunner:
    return make_runner(model_folder("llama"))


@pytest.fixture(scope="module")
def expected(model_folder: Callable[[str], Path]) -> Tensor:
    """Transformers' log-softmax at every position of PROMPT, `[num_tokens, vocab_size]`."""
    return reference_logits(model_folder("llama"), PROMPT).float().log_softmax(dim=-1)


def in_order(values: Sequence[float]) -> list[int]:
    """Token ids, the most likely first, of ties the lowest."""
    return sorted(range(len(values)), key=lambda token_id: (-values[token_id], token_id))


def check(found: PositionLogprobs, row: Tensor, token_id: int, others: Sequence[int]) -> None:
    """Compare one position with its row of log-probabilities `[vocab_size]`."""
    assert found.token_ids == (token_id, *others)
    values = row[list(found.token_ids)].tolist()
    assert found.logprobs == pytest.approx(values, abs=1e-4)
    ranks = {token: rank for rank, token in enumerate(in_order(row.tolist()), start=1)}
    assert found.ranks == tuple(ranks[token] for token in found.token_ids)


def test_most_likely_tokens_come_in_order_of_their_ranks_and_of_ties_the_lowest_first() -> None:
    values = torch.tensor([[0.0, -1.0, 2.0, -0.0, -1.0, 2.0, -math.inf, -math.inf]])
    (top,) = gather_logprobs(values, [4], [LogprobsSpec(num_top=5)])
    assert top.token_ids == (4, 2, 5, 0, 3, 1)
    assert top.ranks == (6, 1, 2, 3, 4, 5)
    assert top.logprobs == (-1.0, 2.0, 2.0, 0.0, 0.0, -1.0)
    (everything,) = gather_logprobs(values, [7], [LogprobsSpec(num_top=-1)])
    assert everything.token_ids == (7, 2, 5, 0, 3, 1, 4)  # 6 and 7 are excluded
    assert everything.ranks == (8, *range(1, 7))
    (named,) = gather_logprobs(values, [7], [LogprobsSpec(token_ids=(6, 3))])
    assert (named.token_ids, named.ranks) == ((7, 6, 3), (8, 7, 4))


def test_rows_that_ask_differently_get_what_they_ask_for() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(7, 97, generator=generator).round(decimals=1)
    specs = [
        LogprobsSpec(),
        LogprobsSpec(num_top=3),
        LogprobsSpec(token_ids=(96, 0, 50)),
        LogprobsSpec(num_top=-1),
        LogprobsSpec(num_top=1000),
        LogprobsSpec(num_top=20),
        LogprobsSpec(token_ids=(5,)),
    ]
    token_ids = [int(row) for row in torch.randint(0, 97, (7,), generator=generator)]
    others = [in_order(row)[: spec.num_top] for row, spec in zip(values.tolist(), specs, strict=True)]
    others[3] = in_order(values[3].tolist())
    others[2], others[6] = [96, 0, 50], [5]
    for count in (7, 2):  # without given tokens nothing is sorted
        found = gather_logprobs(values[:count], token_ids[:count], specs[:count])
        for one, row, token_id, of_row in zip(found, values, token_ids, others, strict=False):
            check(one, row, token_id, of_row)


def test_drawn_tokens_have_transformers_logprobs_whatever_their_rules(
    runner: ModelRunner, expected: Tensor
) -> None:
    history = make_history(prompt=PROMPT, logit_bias={7: 100.0}, repetition_penalty=1.5)
    specs = [
        make_spec(21, logprobs=LogprobsSpec(num_top=2)),
        make_spec(21, logprobs=LogprobsSpec(num_top=2), history=history),
        make_spec(21, logprobs=LogprobsSpec(num_top=2), temperature=1.0, seed=5, top_p=0.9),
    ]
    result = runner.execute(make_plan(make_slice(PROMPT, (0, 1, 2), samples=specs)))
    assert result.sampled[0][1] == 7
    assert set(result.logprobs) == {0}
    best = in_order(expected[-1].tolist())[:2]
    for token_id, found in zip(result.sampled[0], result.logprobs[0], strict=True):
        check(found, expected[-1], token_id, best)


@pytest.mark.parametrize("max_rows", [1, 3, 64])
@pytest.mark.parametrize("spec", [LogprobsSpec(num_top=3), LogprobsSpec(token_ids=(8, 3))])
def test_prompt_logprobs_are_transformers_in_chunks_and_pieces(
    runner: ModelRunner, expected: Tensor, spec: LogprobsSpec, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_logprobs, "MAX_ROWS", max_rows)
    others = make_prompt(9, seed=4)
    found: list[PositionLogprobs] = []
    for start, stop in ((0, 8), (8, 21)):
        piece = make_slice(
            PROMPT[start:stop],
            (4, 5, 6),
            start=start,
            samples=(make_spec(21),) if stop == 21 else (),
            prompt_targets=PROMPT[start + 1 : stop + 1],
            prompt_logprobs=spec,
        )
        other = make_slice(others, (7, 8), samples=(make_spec(9),), name="b")
        result = runner.execute(make_plan(other, piece))
        assert set(result.prompt_logprobs) == {1}
        assert not result.logprobs
        found += result.prompt_logprobs[1]
    assert len(found) == 20
    for row, token_id, one in zip(expected, PROMPT[1:], found, strict=False):
        check(one, row, token_id, spec.token_ids or in_order(row.tolist())[:3])


def test_the_logits_of_few_prompt_tokens_exist_at_a_time(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def logits_of(hidden: Tensor) -> Tensor:
        sizes.append(len(hidden))
        return of_model(hidden)

    of_model = runner.model.logits
    monkeypatch.setattr(runner.model, "logits", logits_of)
    monkeypatch.setattr(token_logprobs, "MAX_ROWS", 8)
    piece = make_slice(PROMPT, (0, 1, 2), prompt_targets=PROMPT[1:], prompt_logprobs=LogprobsSpec())
    runner.execute(make_plan(piece))
    assert sizes == [8, 8, 4]


@pytest.mark.parametrize("mode", LogprobsMode)
def test_modes_tell_of_the_models_logits_or_of_what_is_drawn_from(mode: LogprobsMode) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0], [3.0, 2.0, 1.0, 0.0]])
    history = make_history(logit_bias={1: 4.0})
    specs = [
        make_spec(temperature=2.0, top_k=2, logprobs=LogprobsSpec(num_top=-1), history=history),
        make_spec(top_k=2, logprobs=LogprobsSpec(num_top=-1)),
    ]
    drawn = Sampler(mode=mode).sample(logits.clone(), specs)
    if mode.is_processed:
        logits = torch.tensor([[1.5, 3.0, -math.inf, -math.inf], [3.0, 2.0, 1.0, 0.0]])
    values = logits.log_softmax(dim=-1) if "logprobs" in mode else logits
    for row in (0, 1):
        listed = [one for one in in_order(values[row].tolist()) if values[row, one] > -math.inf]
        check(drawn.logprobs[row], values[row], drawn.token_ids[row], listed)


@pytest.mark.parametrize("mode", LogprobsMode)
def test_raw_ones_know_the_grammar_but_no_other_rule(mode: LogprobsMode) -> None:
    logits = torch.randn(2, VOCAB_SIZE, generator=torch.Generator().manual_seed(4))
    allowed = [*range(1, 32, 2)]  # the grammar's odd tokens, after an even one
    history = make_history((2,), structured_outputs=GRAMMAR, logit_bias={3: 2.0}, bad_words=((5,),))
    free = make_spec(logprobs=LogprobsSpec(num_top=20))
    specs = [make_spec(logprobs=LogprobsSpec(num_top=20), history=history), free]
    sampler = Sampler(rules=LogitsRules(SamplingStates(grammars=Grammars())), mode=mode)
    found = sampler.sample(logits.clone(), specs).logprobs
    expected = torch.full((VOCAB_SIZE,), -math.inf)
    expected[allowed] = logits[0, allowed]
    if mode.is_processed:
        expected[3] += 2.0
        expected[5] = -math.inf
    listed = [token_id for token_id in in_order(expected.tolist()) if expected[token_id] > -math.inf]
    assert {*listed} == {*allowed} - ({5} if mode.is_processed else set())
    values = mode.values(expected)
    check(found[0], values, found[0].token_ids[0], listed)
    if "logprobs" in mode:
        assert sum(math.exp(value) for value in found[0].logprobs[1:]) == pytest.approx(1.0)
    check(found[1], mode.values(logits[1]), found[1].token_ids[0], in_order(logits[1].tolist())[:20])


def test_a_slice_whose_rules_fail_gets_the_reason_and_the_others_theirs(runner: ModelRunner) -> None:
    named = make_history(logits_processors=("some.module:function",))
    asked = LogprobsSpec()
    specs = [make_spec(21, logprobs=asked), make_spec(21, logprobs=asked, history=named)]
    faulty = make_slice(PROMPT, (0, 1, 2), samples=specs, prompt_targets=PROMPT[1:], prompt_logprobs=asked)
    sound = make_slice(PROMPT, (3, 4, 5), samples=specs[:1], name="b")
    result = runner.execute(make_plan(faulty, sound))
    reason = "logits_processors is 'some.module:function'; allowed: none, the operator allows no names"
    assert result.failures == {0: reason}
    assert result.sampled[0] == ()
    assert result.sampled[1] == runner.execute(make_plan(sound)).sampled[0]
    assert set(result.logprobs) == {1}
    assert not result.prompt_logprobs
