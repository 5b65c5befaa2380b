"""A worker goes on with sequences that have generated elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import FirstToken, OutputSoFar, Refused, RequestSpec, TokenBatch
from baton_core.worker.step_plan import StepPlan
from baton_core.worker.worker_events import GrammarCompiled, StepDone
from tests.builders import make_request, step_result
from tests.unit.core.workers import Pair, Worker, make_worker

BLOCK = 4


def resumed(*outputs: tuple[int, ...], **request: Any) -> RequestSpec:
    so_far = tuple(OutputSoFar(index=index, token_ids=ids) for index, ids in enumerate(outputs) if ids)
    return make_request(resumed=so_far, n=len(outputs), **request)


def planned(worker: Worker, token_id: int = 500) -> StepPlan:
    """Plan and execute a step; returns the plan."""
    plan = worker.plan()
    worker.feed(StepDone(result=step_result(plan, token_id)))
    return plan


def test_it_computes_prompt_and_output_and_draws_what_follows() -> None:
    worker = make_worker()
    worker.generate(resumed((7, 8, 9), prompt=8, max_tokens=5, presence_penalty=1.0))
    (piece,) = planned(worker).slices
    assert piece.token_ids == (*make_request(prompt=8).prompt_token_ids, 7, 8, 9)
    (sample,) = piece.samples
    assert sample.position == 11
    assert sample.history is not None
    assert sample.history.output_token_ids == (7, 8, 9)
    worker.step()
    outputs = [output for batch in worker.heard(TokenBatch) for output in batch.outputs]
    assert [(output.token_ids, output.finish_reason) for output in outputs] == [
        ((500,), None),
        ((500,), FinishReason.LENGTH),
    ]
    assert not worker.heard(FirstToken)
    assert worker.core.num_requests == worker.core.pool.num_used == 0


def test_the_prompt_of_several_is_computed_once() -> None:
    worker = make_worker()
    worker.generate(resumed((7,), (), (8, 9), prompt=2 * BLOCK, max_tokens=4))
    first, second = planned(worker), planned(worker)
    assert [piece.seq_id.index for piece in first.slices] == [0]
    assert {piece.seq_id.index: piece.num_scheduled_tokens for piece in second.slices} == {0: 1, 2: 2}
    assert sorted({output.index for batch in worker.heard(TokenBatch) for output in batch.outputs}) == [0, 2]


@pytest.mark.parametrize("indices", [(), (0,), (0, 2)])
def test_several_can_be_cancelled_before_they_begin(indices: tuple[int, ...]) -> None:
    worker = make_worker()
    worker.generate(resumed((7,), (), (8, 9), prompt=2 * BLOCK, max_tokens=4))
    worker.cancel("r", *indices)
    worker.run()
    ends = [output.index for batch in worker.heard(TokenBatch) for output in batch.outputs]
    assert set(ends) == ({2} if indices == (0,) else set())
    assert worker.core.pool.num_used == 0


@pytest.mark.parametrize("num_prompt_tokens", [2 * BLOCK, 2 * BLOCK - 1])
def test_a_pair_hands_over_prompt_and_output(num_prompt_tokens: int) -> None:
    pair = Pair()
    spec = resumed((7, 8, 9), prompt=num_prompt_tokens, max_tokens=6)
    pair.hand_over(spec)
    (first,) = pair.p.heard(FirstToken)
    assert [(output.index, output.token_ids) for output in first.outputs] == [(0, (500,))]
    assert pair.num_pulled_blocks == -(-(num_prompt_tokens + 3) // BLOCK)
    plan = planned(pair.d)
    assert [(piece.start, piece.token_ids) for piece in plan.slices] == [(num_prompt_tokens + 3, (500,))]
    pair.d.run()
    outputs = [output for batch in pair.d.heard(TokenBatch) for output in batch.outputs]
    assert len(outputs) == 2
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_what_ends_it_looks_at_all_its_tokens() -> None:
    worker = make_worker()
    detection = RepetitionDetectionParams(max_pattern_size=1, min_count=3)
    worker.prefill(resumed((500, 500), max_tokens=9, repetition_detection=detection))
    worker.step()
    (first,) = worker.heard(FirstToken)
    assert first.outputs[0].finish_reason is FinishReason.REPETITION


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        (resumed((5,) * 4, max_tokens=4), "resumed is '4 tokens'; allowed: 1 to 3 tokens"),
        (resumed((999_999,), max_tokens=4), "resumed is 999999; allowed: token ids from 0 to"),
    ],
)
def test_what_cannot_go_on_is_refused(spec: RequestSpec, allowed: str) -> None:
    worker = make_worker()
    worker.generate(spec)
    (refused,) = worker.heard(Refused)
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert allowed in refused.message


def test_several_are_not_split() -> None:
    worker = make_worker()
    worker.prefill(resumed((5,), (6,), max_tokens=4))
    (refused,) = worker.heard(Refused)
    assert "resumed is '2 sequences'; allowed: one, where it is split" in refused.message


def test_a_sequence_whose_leader_ends_waits_for_the_grammar_as_well() -> None:
    worker = make_worker()
    spec = resumed((5,), (6,), max_tokens=10, structured_outputs=StructuredOutputsParams(regex="a*"))
    (compile_grammar,) = worker.generate(spec)
    worker.cancel("r", 0)
    assert worker.core.schedule(0.0) is None
    worker.feed(GrammarCompiled(compilation_id=compile_grammar.compilation_id))
    for _ in range(3):
        worker.step()
    outputs = [output for batch in worker.heard(TokenBatch) for output in batch.outputs]
    assert [output.index for output in outputs] == [1, 1, 1]
