"""A slice whose rules cannot be followed ends its own request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from baton_core.errors import ErrorCode
from baton_core.sessions.router_messages import Failed, FirstToken, TokenBatch
from baton_core.worker.worker_events import StepDone
from tests.builders import make_kv_spec, make_request, make_worker_config, step_result
from tests.unit.core.workers import Worker, make_worker


def step_failing(worker: Worker, names: Collection[str], index: int = 0, *, is_refused: bool = False) -> None:
    """Run a step in which sequence `index` of the requests named fails."""
    plan = worker.plan()
    seq_ids = [piece.seq_id for piece in plan.slices]
    failures = {
        number: "no such word"
        for number, seq_id in enumerate(seq_ids)
        if seq_id.request_id in names and seq_id.index == index
    }
    assert failures
    refused = frozenset(failures) if is_refused else frozenset[int]()
    result = step_result(plan)
    sampled = tuple(() if number in failures else tokens for number, tokens in enumerate(result.sampled))
    worker.feed(StepDone(result=replace(result, sampled=sampled, failures=failures, refused=refused)))


def test_its_neighbours_go_on() -> None:
    worker = make_worker()
    for name in "abc":
        worker.generate(make_request(name, prompt=4))
    step_failing(worker, ["b"])
    assert [message.request_id for message in worker.heard(FirstToken)] == ["a", "c"]
    step_failing(worker, ["a"])
    (batch,) = worker.heard(TokenBatch)
    assert [output.request_id for output in batch.outputs] == ["c"]
    assert worker.heard(Failed) == [
        Failed(request_id=name, code=ErrorCode.INTERNAL, message="no such word") for name in "ba"
    ]
    assert worker.core.num_requests == 1


def test_one_of_several_sequences_ends_the_whole_request_once() -> None:
    worker = make_worker()
    worker.generate(make_request("a", prompt=4, n=3))
    worker.step()
    step_failing(worker, ["a"], index=1)
    assert len(worker.heard(Failed)) == 1
    assert worker.core.num_requests == 0
    assert worker.core.pool.num_used == 0


def test_a_prompt_that_waits_for_its_puller_is_given_up() -> None:
    worker = make_worker()
    worker.prefill(make_request("a", prompt=8))
    step_failing(worker, ["a"])
    assert [message.request_id for message in worker.told] == ["a"]
    assert worker.core.num_requests == worker.core.leases.num_open == worker.core.pool.num_used == 0


def test_a_request_whose_fields_contradict_each_other_is_refused_not_failed() -> None:
    worker = make_worker()
    worker.generate(make_request("a", prompt=4))
    step_failing(worker, ["a"], is_refused=True)
    (failed,) = worker.heard(Failed)
    assert failed.code is ErrorCode.INVALID_REQUEST


def test_blocks_of_logits_that_are_not_finite_are_found_by_nobody() -> None:
    """Nor those that the sequence gave back, behind its window."""
    worker = Worker(make_worker_config(kv_spec=make_kv_spec((8,)), num_blocks=32))
    worker.generate(make_request("a", prompt=30))
    plan = worker.plan()
    result = replace(step_result(plan), sampled=((),), failures={0: "not finite"}, broken=frozenset({0}))
    worker.feed(StepDone(result=result))
    assert not len(worker.core.pool.cache)
    assert worker.core.pool.num_free == 32
    worker.generate(make_request("b", prompt=14))
    plan = worker.plan()
    assert plan.slices[0].start == 0
