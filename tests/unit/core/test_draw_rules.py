"""How each token is to be drawn: rules and history, wherever and however often its sequence is computed."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.sessions.router_messages import FirstToken, Refused, RequestSpec, TokenBatch
from baton_core.worker.step_plan import LogprobsSpec, SampleSpec, SamplingHistory, SeqId
from baton_core.worker.worker_events import StepDone
from tests.builders import EOS_TOKEN_ID, make_prompt, make_request, step_result
from tests.unit.core.workers import Pair, Worker, make_worker


def next_samples(worker: Worker, token_id: int = 500) -> list[SampleSpec]:
    """Compute a step; how its tokens are drawn."""
    plan = worker.plan()
    worker.feed(StepDone(result=step_result(plan, token_id)))
    return [sample for piece in plan.slices for sample in piece.samples]


def next_history(worker: Worker, token_id: int = 500) -> SamplingHistory:
    (sample,) = next_samples(worker, token_id)
    assert sample.history is not None
    return sample.history


def ending(spec: RequestSpec) -> tuple[int, ...]:
    worker = make_worker()
    worker.generate(spec)
    return next_history(worker).rules.ending_token_ids


# --- rules ---


@pytest.mark.parametrize(
    "changes",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.1},
        {"min_tokens": 1},
        {"logit_bias": {5: 1.0}},
        {"allowed_token_ids": (5,)},
        {"bad_word_ids": ((1, 2),)},
        {"thinking": ThinkingBudget(num_tokens=3, start_token_ids=(), end_token_ids=(5,))},
        {"logits_processors": (lambda *args: None,)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whoever_changes_logits_draws_by_rules(changes: dict[str, Any]) -> None:
    worker = make_worker()
    spec = make_request(**changes)
    worker.generate(spec)
    rules = next_history(worker).rules
    assert (rules.params, rules.bad_words, rules.thinking) == (spec.params, spec.bad_words, spec.thinking)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
        {"logprobs": 3, "prompt_logprobs": 1, "stop_token_ids": (5,), "ignore_eos": True},
    ],
)
def test_whoever_does_not_draws_without(changes: dict[str, Any]) -> None:
    worker = make_worker()
    worker.generate(make_request(**changes))
    assert [sample.history for sample in next_samples(worker)] == [None]


def test_tokens_that_would_end_it_are_named_as_long_as_they_may_not_be_drawn() -> None:
    assert ending(make_request(min_tokens=1, stop_token_ids=(7, 3))) == (3, 7, EOS_TOKEN_ID)
    assert ending(make_request(min_tokens=1, stop_token_ids=(7,), ignore_eos=True)) == (7, EOS_TOKEN_ID)
    assert ending(make_request(presence_penalty=1.0, stop_token_ids=(7,))) == ()


@pytest.mark.parametrize(
    ("changes", "spec"),
    [
        ({}, None),
        ({"logprobs": 0}, LogprobsSpec()),
        ({"logprobs": 4}, LogprobsSpec(num_top=4)),
        ({"logprobs": -1}, LogprobsSpec(num_top=-1)),
        ({"logprob_token_ids": (9, 5)}, LogprobsSpec(token_ids=(9, 5))),
        ({"logprobs": 4, "logprob_token_ids": (9, 5)}, LogprobsSpec(token_ids=(9, 5))),
    ],
)
def test_which_log_probabilities_are_wanted(changes: dict[str, Any], spec: LogprobsSpec | None) -> None:
    worker = make_worker()
    worker.generate(make_request(**changes))
    assert [sample.logprobs for sample in next_samples(worker)] == [spec]


# --- history ---


def test_history_is_the_output_so_far_and_the_rules_stay_the_same() -> None:
    worker = make_worker()
    worker.generate(make_request(prompt=6, repetition_penalty=1.1))
    histories = [next_history(worker, token_id) for token_id in (500, 501, 502)]
    assert [history.output_token_ids for history in histories] == [(), (500,), (500, 501)]
    assert {history.prompt_token_ids for history in histories} == {make_prompt(6)}
    assert {history.seq_id for history in histories} == {SeqId("r", 0)}
    assert len({id(history.rules) for history in histories}) == 1


def test_each_sequence_of_a_request_has_its_own_history() -> None:
    worker = make_worker()
    worker.generate(make_request(n=3, repetition_penalty=1.1))
    for outputs in ((), (500,)):
        histories = [sample.history for sample in next_samples(worker)]
        assert [(history.seq_id.index, history.output_token_ids) for history in histories if history] == [
            (index, outputs) for index in range(3)
        ]


def test_history_goes_on_at_the_decode_worker() -> None:
    pair = Pair()
    pair.hand_over(make_request(n=2, presence_penalty=1.0))
    for outputs in ((500,), (500, 501)):
        histories = [sample.history for sample in next_samples(pair.d, 501)]
        assert [(history.seq_id.index, history.output_token_ids) for history in histories if history] == [
            (0, outputs),
            (1, outputs),
        ]


def test_history_survives_preemption() -> None:
    worker = make_worker(num_blocks=4, max_num_batched_tokens=16)
    worker.generate(make_request("a", prompt=7, max_tokens=3))
    worker.generate(make_request("b", prompt=7, first=100, max_tokens=8, presence_penalty=1.0), now=1.0)
    drawn = []
    for token_id in range(500, 510):
        drawn += [one.history for one in next_samples(worker, token_id) if one.history is not None]
        if not worker.core.num_requests:
            break
    assert worker.core.scheduler.num_preemptions == 1
    outputs = [history.output_token_ids for history in drawn]
    assert outputs == [outputs[-1][:count] for count in range(8)]


# --- ends ---


def test_a_sequence_that_repeats_itself_ends() -> None:
    worker = make_worker()
    detection = {"max_pattern_size": 2, "min_pattern_size": 2, "min_count": 2}
    worker.generate(make_request(max_tokens=20, repetition_detection=RepetitionDetectionParams(**detection)))
    for token_id in (1, 2, 1, 2):
        worker.step(token_id=token_id)
    (output,) = worker.told[-1].outputs
    assert (output.token_ids, output.finish_reason) == ((2,), FinishReason.REPETITION)
    assert worker.core.num_requests == 0


def test_repetition_is_noticed_over_the_hand_over() -> None:
    pair = Pair()
    detection = RepetitionDetectionParams(max_pattern_size=1, min_count=3)
    pair.hand_over(make_request(max_tokens=20, repetition_detection=detection))
    pair.d.step(token_id=500)
    pair.d.step(token_id=500)
    (output,) = pair.d.heard(TokenBatch)[-1].outputs
    assert output.finish_reason is FinishReason.REPETITION


def test_the_prompt_is_no_repetition() -> None:
    worker = make_worker()
    detection = RepetitionDetectionParams(max_pattern_size=8, min_count=2)
    worker.generate(make_request(prompt=8, max_tokens=20, repetition_detection=detection))
    for token_id in make_prompt(8):
        worker.step(token_id=token_id)
    assert worker.core.num_requests == 1


@pytest.mark.parametrize("num_steps", [1, 2])
def test_the_stop_token_is_told_with_the_first_token_and_with_later_ones(num_steps: int) -> None:
    worker = make_worker()
    worker.generate(make_request(stop_token_ids=(7,)))
    for token_id in (5, 7)[-num_steps:]:
        worker.step(token_id=token_id)
    (output,) = worker.told[-1].outputs
    assert (output.finish_reason, output.stop_token_id) == (FinishReason.STOP, 7)


def test_an_end_token_of_the_model_is_told_too() -> None:
    worker = make_worker()
    worker.generate(make_request())
    worker.step(token_id=EOS_TOKEN_ID)
    (output,) = worker.heard(FirstToken)[0].outputs
    assert (output.finish_reason, output.stop_token_id) == (FinishReason.STOP, EOS_TOKEN_ID)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"allowed_token_ids": (5, 6), "bad_word_ids": ((5,), (6,))}, "bad_words"),
        ({"allowed_token_ids": (EOS_TOKEN_ID,), "min_tokens": 2}, "min_tokens"),
        (
            {"allowed_token_ids": (5, 6), "bad_word_ids": ((5,),), "min_tokens": 2, "stop_token_ids": (6,)},
            "min_tokens and bad_words",
        ),
    ],
)
def test_rules_that_leave_no_first_token_are_refused_before_any_work(
    changes: dict[str, Any], fields: str
) -> None:
    worker = make_worker()
    worker.generate(make_request("a", prompt=4, **changes))
    (refused,) = worker.heard(Refused)
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert refused.message.startswith("allowed_token_ids is (")
    assert f"beside {fields};" in refused.message
    assert worker.core.schedule(0.0) is None
    assert worker.core.num_requests == 0


def test_rules_that_leave_a_first_token_are_served() -> None:
    worker = make_worker()
    worker.generate(
        make_request("a", prompt=4, allowed_token_ids=(EOS_TOKEN_ID, 5), bad_word_ids=((5, 5),), min_tokens=2)
    )
    assert next_history(worker, 5).rules.params.allowed_token_ids == (EOS_TOKEN_ID, 5)
