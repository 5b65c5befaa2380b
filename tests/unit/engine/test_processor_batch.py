"""Logits processors that are classes: what they are told, what they change, and what a faulty one costs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.logits_processors import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    process_dict_updates,
)
from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.sampling_rules import SamplingRules
from baton_core.worker.step_plan import SamplingHistory
from baton_engine.sampling.logits_processors import LogitsProcessors
from baton_engine.sampling.logits_rules import LogitsRules
from baton_engine.sampling.processor_batch import Batch
from baton_engine.sampling.sampling_state import SamplingStates
from tests.unit.engine.steps import make_history, make_rules

HERE = "tests.unit.engine.test_processor_batch"
VOCAB_SIZE = 16
ONE_WAY = MoveDirectionality.UNIDIRECTIONAL


class Follower(LogitsProcessor):
    """Leaves the token that the length of the prompt and the output's tokens choose, if a request asks."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.vocab_size = vllm_config.model_config.get_vocab_size()
        assert (device.type, is_pin_memory) == ("cpu", False)
        self.requests: dict[int, tuple[list[int], list[int]]] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if (sampling_params.extra_args or {}).get("follow", True) is None:
            raise ValueError("follow is None")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.requests.pop(index, None)
        for index, params, prompt, output in batch_update.added:
            self.requests.pop(index, None)
            if (params.extra_args or {}).get("follow"):
                assert prompt is not None
                self.requests[index] = (prompt, output)
        for source, target, direction in batch_update.moved:
            assert direction is ONE_WAY
            self.requests.pop(target, None)
            if (moved := self.requests.pop(source, None)) is not None:
                self.requests[target] = moved

    def apply(self, logits: Tensor) -> Tensor:
        for index, (prompt, output) in self.requests.items():
            logits[index] = -torch.inf
            logits[index, (7 * len(prompt) + sum(output)) % self.vocab_size] = 0.0
        return logits


class PerRequest(AdapterLogitsProcessor):
    """The same for each request, in a function."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., Tensor] | None:
        return follow if (params.extra_args or {}).get("follow") else None


def follow(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
    left = torch.full_like(logits, -torch.inf)
    left[(7 * len(prompt) + sum(output)) % VOCAB_SIZE] = 0.0
    return left


class Least(Follower):
    """Leaves tokens with a tenth of the most likely one's probability, which is always one of them."""

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: Tensor) -> Tensor:
        shares = logits.softmax(dim=-1)
        return logits.masked_fill_(shares < 0.1 * shares.amax(dim=-1, keepdim=True), -torch.inf)


class Failing(Follower):
    num_made = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        Failing.num_made += 1

    def apply(self, logits: Tensor) -> Tensor:
        if self.requests:
            raise RuntimeError("no such word")
        return logits[:, :3] if logits.shape[0] == 2 else logits


class Unmakeable(Follower):
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        raise AttributeError(vllm_config.model_config.no_such_field)


class Sizes:
    class model_config:  # noqa: N801  # vLLM's name
        @staticmethod
        def get_vocab_size() -> int:
            return VOCAB_SIZE


def rules_with(*names: str) -> LogitsRules:
    table = LogitsProcessors.load([f"{HERE}:{name}" for name in names])
    return LogitsRules(SamplingStates(table), table.batch_processors(Sizes(), torch.device("cpu")))


def history(name: str, output: tuple[int, ...] = (), **params: Any) -> SamplingHistory:
    return make_history(output, name=name, **params)


def changes(update: BatchUpdate | None) -> tuple[Any, ...] | None:
    if update is None:
        return None
    added = [(index, prompt, list(output)) for index, _, prompt, output in update.added]
    return update.batch_size, list(update.removed), added, list(update.moved)


def test_a_batch_tells_who_has_come_gone_and_moved() -> None:
    batch = Batch()
    one, two, three, four = (history(name, prompt=(ord(name),)) for name in "abcd")
    assert changes(batch.update({0: one, 1: two, 2: three, 3: four})) == (
        4,
        [],
        [(index, [97 + index], []) for index in range(4)],
        [],
    )
    assert batch.update({0: one, 1: two, 2: three, 3: four}) is None
    assert changes(batch.update({0: four, 1: two})) == (2, [0, 2], [], [(3, 0, ONE_WAY)])
    assert batch.rows({0: four, 1: two}) == [0, 1]
    five = history("e", prompt=(5,))
    assert changes(batch.update({0: two, 2: five})) == (2, [], [(0, [5], [])], [])
    assert batch.rows({0: two, 2: five}) == [2, 0]
    assert changes(batch.update({})) == (0, [0, 1], [], [])


def test_a_sequence_that_does_not_go_on_as_it_was_is_added_again() -> None:
    batch, rules = Batch(), make_rules()
    batch.update({0: history("a", (4,), rules=rules)})
    assert batch.update({0: history("a", (4, 5), rules=rules)}) is None
    assert changes(batch.update({0: history("a", (4,), rules=rules)})) == (1, [], [(0, [1, 2], [4])], [])
    assert changes(batch.update({0: history("a", (9,), rules=rules)})) == (1, [], [(0, [1, 2], [9])], [])
    assert changes(batch.update({0: history("a", (9,))})) == (1, [], [(0, [1, 2], [9])], [])


@pytest.mark.parametrize("name", ["Follower", "PerRequest"])
def test_requests_are_followed_whichever_rows_they_have(name: str) -> None:
    """Sequences come, go, wait and change places; each row is as if it were alone."""
    chance, rules = random.Random(3), rules_with(name)
    outputs: dict[str, tuple[int, ...]] = {}
    kinds: dict[str, SamplingRules] = {}
    for step in range(60):
        fresh = f"{step}"
        outputs[fresh] = ()
        kinds[fresh] = make_rules(extra_args={"follow": True} if step % 3 else None)
        if len(outputs) > 6:
            del outputs[chance.choice(list(outputs))]
        names = chance.sample(list(outputs), chance.randint(1, len(outputs)))
        logits = torch.zeros(len(names) + 1, VOCAB_SIZE)
        histories = {
            row: history(name, outputs[name], rules=kinds[name], prompt=(1,) * (int(name) % 5))
            for row, name in enumerate(names)
        }
        assert rules.apply(logits, histories) == {}
        assert not logits[-1].any()
        for row, name in enumerate(names):
            one = histories[row]
            alone = torch.zeros(VOCAB_SIZE)
            if int(name) % 3:
                alone = follow(list(one.prompt_token_ids), list(one.output_token_ids), alone)
            assert torch.equal(logits[row], alone)
            outputs[name] += (chance.randrange(VOCAB_SIZE),)


def test_classes_come_after_functions_and_before_penalties() -> None:
    def double(output: list[int], logits: Tensor) -> Tensor:
        return logits * 2

    rules = rules_with("Doubling")
    logits = torch.ones(1, VOCAB_SIZE)
    given = history("a", (3,), logit_bias={3: 1.0}, logits_processors=(double,), frequency_penalty=1.0)
    assert rules.apply(logits, {0: given}) == {}
    assert logits[0, 3] == (1.0 + 1.0) * 2 * 2 - 1.0
    assert logits[0, 4] == 4.0


class Doubling(Follower):
    def apply(self, logits: Tensor) -> Tensor:
        return logits.mul_(2)


def test_those_that_keep_the_most_likely_token_see_the_temperature_and_pass_greedy_rows_over() -> None:
    logits = torch.tensor([[0.0, 4.0, 2.0, 1.0]] * 3)
    histories = {
        row: history(f"{row}", temperature=temperature) for row, temperature in enumerate((0.5, 0.0, 2.0))
    }
    assert rules_with("Least").apply(logits, histories) == {}
    kept = [[token for token in range(4) if row[token] > -torch.inf] for row in logits]
    assert kept == [[1], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert logits[2].tolist() == [0.0, 4.0, 2.0, 1.0]


def test_a_failing_class_costs_the_requests_of_its_step_and_begins_anew() -> None:
    Failing.num_made = 0
    rules = rules_with("Failing")
    logits = torch.zeros(3, VOCAB_SIZE)
    asking = history("a", extra_args={"follow": True})
    failures = rules.apply(logits, {0: asking, 1: history("b")})
    assert {row: str(error) for row, error in failures.items()} == dict.fromkeys(
        (0, 1), "the logits processor Failing fails: RuntimeError: no such word"
    )
    assert Failing.num_made == 2
    failures = rules.apply(logits, {0: history("b"), 1: history("c")})
    assert "it returned [2, 3]; allowed: logits [2, 16]" in str(failures[1])
    assert rules.apply(logits, {0: history("d")}) == {}


def test_what_the_model_gives_as_no_number_stays_none() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[0, 3] = torch.nan
    assert rules_with("Doubling").apply(logits, {0: history("a"), 1: history("b")}) == {}
    assert logits.isnan().nonzero().tolist() == [[0, 3]]


def test_parameters_that_a_class_refuses_fail_their_request_alone() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    histories = {0: history("a", extra_args={"follow": None}), 1: history("b", extra_args={"follow": 1})}
    failures = rules_with("Follower").apply(logits, histories)
    assert list(failures) == [0]
    assert isinstance(failures[0], InvalidRequestError)
    assert f"allowed: what the logits processor {HERE}:Follower takes (follow is None)" in str(failures[0])
    assert logits[1].tolist() == follow([1, 2], [], torch.zeros(VOCAB_SIZE)).tolist()


def test_a_request_cannot_name_a_class() -> None:
    table = LogitsProcessors.load([f"{HERE}:Follower"])
    for given in (f"{HERE}:Follower", Follower):
        with pytest.raises(InvalidRequestError, match=r"allowed: (a function; this is a class|functions of)"):
            table.of(SamplingParams(logits_processors=(given,)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Sizes", "the class has no apply, is_argmax_invariant, update_state; allowed: classes with apply"),
        ("Unmakeable", "cannot be made .*no_such_field.*allowed: classes whose constructor takes"),
        ("LogitsProcessor", "cannot be made .*abstract"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_at_start(name: str, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"logits_processors has '{HERE}:{name}', .*{reason}"):
        rules_with(name)


def test_states_in_a_dictionary_follow_the_requests() -> None:
    states = {0: "a", 1: "b", 2: "c"}

    def made(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> str | None:
        return (params.extra_args or {})["state"] or None

    def update(removed: list[int], added: dict[int, str], moved: list[tuple[int, int, Any]]) -> bool:
        news = [(index, SamplingParams(extra_args={"state": name}), [1], []) for index, name in added.items()]
        change = BatchUpdate(batch_size=8, removed=removed, added=news, moved=moved)
        return process_dict_updates(states, change, made)

    assert not process_dict_updates(states, None, lambda *_: "new")
    assert not update([7], {5: ""}, [(6, 7, ONE_WAY)])
    assert states == {0: "a", 1: "b", 2: "c"}
    assert update([0], {1: "", 3: "d"}, [(2, 0, ONE_WAY)])
    assert states == {0: "c", 3: "d"}
    assert update([], {}, [(0, 3, MoveDirectionality.SWAP)])
    assert states == {0: "d", 3: "c"}
    assert update([], {}, [(1, 3, MoveDirectionality.SWAP)])
    assert states == {0: "d", 1: "c"}
    assert update([], {}, [(2, 0, ONE_WAY)])
    assert states == {1: "c"}
