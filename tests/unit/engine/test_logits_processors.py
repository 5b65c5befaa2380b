"""Users' own logits processors: how they are found and called, and what a faulty one costs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_engine.sampling.logits_processors import LogitsProcessors
from baton_engine.sampling.logits_rules import LogitsRules
from baton_engine.sampling.sampler import Sampler
from baton_engine.sampling.sampling_state import SamplingStates
from tests.unit.engine.steps import make_history, make_spec

HERE = "tests.unit.engine.test_logits_processors"


def only_after_last(output_token_ids: list[int], logits: Tensor) -> Tensor:
    """Leave the token that follows the last one of the output."""
    only = torch.full_like(logits, -torch.inf)
    only[output_token_ids[-1] + 1] = 0.0
    return only


def add_lengths(prompt_token_ids: list[int], output_token_ids: list[int], logits: Tensor) -> Tensor:
    logits[0] += 100 * len(prompt_token_ids) + len(output_token_ids)
    return logits


def add_argument(output_token_ids: list[int], logits: Tensor, extra_args: dict[str, Any]) -> Tensor:
    return logits + extra_args.get("amount", 0.5)


def fail(output_token_ids: list[int], logits: Tensor) -> Tensor:
    logits.fill_(torch.nan)
    raise RuntimeError("no such word")


def one_argument(logits: Tensor) -> Tensor:
    return logits


class Nested:
    @staticmethod
    def double(output_token_ids: list[int], logits: Tensor) -> Tensor:
        return logits * 2


def apply(*processors: Any, output: tuple[int, ...] = (1, 2), **params: Any) -> Tensor:
    """Return what becomes of four logits, 1 to 4."""
    logits = torch.arange(1.0, 5.0)[None]
    history = make_history(output, logits_processors=processors, **params)
    assert LogitsRules().apply(logits, {0: history}) == {}
    return logits[0]


def test_functions_get_the_tokens_that_they_have_parameters_for() -> None:
    assert apply(only_after_last).tolist() == [-torch.inf, -torch.inf, -torch.inf, 0.0]
    assert apply(add_lengths).tolist() == [203.0, 2.0, 3.0, 4.0]
    assert apply(add_argument).tolist() == [1.5, 2.5, 3.5, 4.5]
    assert apply(add_argument, extra_args={"amount": 2}).tolist() == [3.0, 4.0, 5.0, 6.0]
    assert apply(partial(add_argument, extra_args={"amount": 1})).tolist() == [2.0, 3.0, 4.0, 5.0]


def test_processors_apply_one_after_the_other_before_penalties() -> None:
    assert apply(Nested.double, add_lengths).tolist() == [204.0, 4.0, 6.0, 8.0]
    penalised = apply(Nested.double, repetition_penalty=2.0, logit_bias={2: 1.0})
    assert penalised.tolist() == [2.0, 2.0, 4.0, 8.0]


def test_what_is_infinitely_likely_is_drawn_and_what_is_no_number_is_not() -> None:
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0])
    made = apply(lambda output, logits: values)
    assert made.tolist() == [-torch.inf, torch.finfo(torch.float32).max, -torch.inf, 1.0]
    assert values.isnan().any(), "a function's own tensor is not changed"


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        (fail, r"RuntimeError\(.*no such word"),
        (lambda output, logits: logits[:2], r"ValueError\(.*<lambda> returned \[2\]; allowed: logits \[4\]"),
        (lambda output, logits: None, "returned None; allowed"),
        (one_argument, "logits_processors is .*; allowed: functions of"),
        (f"{HERE}:fail", f"logits_processors is '{HERE}:fail'; allowed: none"),
    ],
)
def test_a_faulty_processor_fails_its_own_row_alone(processor: Any, reason: str) -> None:
    logits = torch.arange(12.0).view(3, 4)
    histories = {
        0: make_history((1,), logit_bias={1: 1.0}),
        1: make_history((1,), logits_processors=(processor,), name="b"),
    }
    failures = LogitsRules().apply(logits, histories)
    assert list(failures) == [1]
    with pytest.raises(RuntimeError, match=reason):
        raise RuntimeError(repr(failures[1]))
    assert logits[[0, 2]].tolist() == [[0.0, 2.0, 2.0, 3.0], [8.0, 9.0, 10.0, 11.0]]


def test_neighbours_of_a_faulty_processor_draw_what_they_draw_without_it() -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    specs = [make_spec(row, seed=row, temperature=1.0) for row in range(3)]
    faulty = replace(specs[1], history=make_history((1,), logits_processors=(fail,)))
    expected = Sampler().sample(logits.clone(), specs)
    found = Sampler().sample(logits.clone(), [specs[0], faulty, specs[2]])
    assert {row: repr(error) for row, error in found.failures.items()} == {
        1: repr(RuntimeError("no such word"))
    }
    assert [found.token_ids[row] for row in (0, 2)] == [expected.token_ids[row] for row in (0, 2)]


def test_allowed_names_are_imported() -> None:
    names = (f"{HERE}:add_lengths", f"{HERE}:Nested.double")
    table = LogitsProcessors.load(names)
    logits = torch.ones(1, 4)
    history = make_history((5,), logits_processors=names)
    assert LogitsRules(SamplingStates(table)).apply(logits, {0: history}) == {}
    assert logits.tolist() == [[2.0 * (1 + 201), 2.0, 2.0, 2.0]]
    with pytest.raises(InvalidRequestError, match=f"is '{HERE}:fail'; allowed: {HERE}:add_lengths, {HERE}:N"):
        table.of(SamplingParams(logits_processors=(f"{HERE}:fail",)))


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("no_such_package:function", "ModuleNotFoundError: No module named 'no_such_package'"),
        (f"{HERE}:missing", "AttributeError: .* has no attribute 'missing'"),
        (f"{HERE}", "ModuleNotFoundError|AttributeError"),
        (f"{HERE}:HERE", "TypeError: it is 'tests.*'; allowed: functions of"),
        (f"{HERE}:one_argument", "TypeError: it requires 1 arguments; allowed: functions of"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_at_start(name: str, cause: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"logits_processors has '{name}', .*({cause})"):
        LogitsProcessors.load([name])
