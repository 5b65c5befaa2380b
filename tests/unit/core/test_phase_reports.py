"""A worker reports the phases of each request once it is over, and the sources of its prompt."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.requests.phases import PhaseReport, TokenSources
from baton_core.sessions.router_messages import Failed
from baton_core.worker.worker_events import PullAborted, PullDone, RouterLost, StepDone, StepFailed
from baton_worker.core import phase_log
from tests.builders import EOS_TOKEN_ID, make_request, step_result
from tests.unit.core.workers import ROUTER, Pair, Worker, make_worker

Bar = tuple[str, float, float]


def step(worker: Worker, start_s: float, end_s: float, *, token_id: int = 500) -> list[Any]:
    """One step that takes a while."""
    plan = worker.core.schedule(start_s)
    assert plan is not None, "there is nothing to compute"
    return worker.feed(StepDone(result=step_result(plan, token_id)), now=end_s)


def report_of(worker: Worker, request_id: str = "r") -> PhaseReport:
    """The one report there was."""
    (report,) = [one for one in worker.reports if one.request_id == request_id]
    return report


def bars(report: PhaseReport) -> list[Bar]:
    return [(phase.name.value, phase.start_s, phase.end_s) for phase in report.phases]


def counts(report: PhaseReport) -> tuple[int, int, int, int]:
    """Computed, local cache, remote, recomputed."""
    sources: TokenSources = report.sources
    return sources.num_computed, sources.num_local_cache, sources.num_remote, sources.num_recomputed


def test_a_request_that_stays_has_its_queue_its_chunks_and_its_decode() -> None:
    worker = make_worker(max_num_batched_tokens=6)
    worker.generate(make_request(prompt=10, max_tokens=3, traceparent="00-1-2-01"), now=1.0)
    for number in range(4):
        assert not worker.reports
        step(worker, 2.0 + number, 2.5 + number)
    report = report_of(worker)
    assert bars(report) == [
        ("queue", 1.0, 2.0),
        ("prefill_chunk", 2.0, 2.5),
        ("prefill_chunk", 3.0, 3.5),
        ("decode_queue", 3.5, 4.0),
        ("decode", 4.0, 5.5),
    ]
    assert [phase.num_tokens for phase in report.phases] == [0, 6, 4, 0, 2]
    assert counts(report) == (10, 0, 0, 0)
    assert (report.sent_s, report.num_left_out, report.traceparent) == (5.5, 0, "00-1-2-01")


def test_a_prompt_that_is_cached_counts_as_found_but_for_what_is_computed() -> None:
    worker = make_worker()
    for name in ("a", "b"):
        worker.generate(make_request(name, prompt=10, max_tokens=1))
        worker.step()
    assert counts(report_of(worker, "a")) == (10, 0, 0, 0)
    assert counts(report_of(worker, "b")) == (2, 8, 0, 0)
    assert [phase.num_tokens for phase in report_of(worker, "b").phases] == [0, 2]


def test_the_report_follows_the_last_tokens() -> None:
    worker = make_worker()
    worker.generate(make_request(max_tokens=1))
    effects = worker.core.on_event(0.0, StepDone(result=step_result(worker.plan())))
    kinds = [type(effect.message).__name__ for effect in effects]
    assert kinds.index("PhaseReport") > kinds.index("FirstToken")


def test_a_first_token_that_ends_the_request_leaves_no_decode() -> None:
    worker = make_worker()
    worker.generate(make_request(max_tokens=9))
    step(worker, 1.0, 2.0, token_id=EOS_TOKEN_ID)
    assert bars(report_of(worker)) == [("queue", 0.0, 1.0), ("prefill_chunk", 1.0, 2.0)]


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_a_cancelled_request_is_told_as_far_as_it_came(num_steps: int) -> None:
    worker = make_worker()
    worker.generate(make_request(prompt=8, max_tokens=9))
    for number in range(num_steps):
        step(worker, 1.0 + number, 1.5 + number)
    worker.cancel("r", now=7.0)
    report = report_of(worker)
    expected = [
        [("queue", 0.0, 7.0)],
        [("queue", 0.0, 1.0), ("prefill_chunk", 1.0, 1.5), ("decode_queue", 1.5, 7.0)],
        [("queue", 0.0, 1.0), ("prefill_chunk", 1.0, 1.5), ("decode_queue", 1.5, 2.0), ("decode", 2.0, 7.0)],
    ]
    assert bars(report) == expected[num_steps]
    assert counts(report) == (8 if num_steps else 0, 0, 0, 0)
    worker.cancel("r", now=8.0)
    assert worker.reports == [report]


def test_a_request_cancelled_within_a_step_is_told_once() -> None:
    worker = make_worker()
    worker.generate(make_request(max_tokens=9))
    plan = worker.plan(1.0)
    worker.cancel("r", now=2.0)
    worker.feed(StepDone(result=step_result(plan)), now=3.0)
    assert bars(report_of(worker)) == [("queue", 0.0, 2.0)]


def test_a_lost_router_is_a_cancellation() -> None:
    worker = make_worker()
    worker.generate(make_request(max_tokens=9))
    worker.feed(RouterLost(router_id=ROUTER), now=3.0)
    assert bars(report_of(worker)) == [("queue", 0.0, 3.0)]


def test_a_failed_step_ends_and_tells_its_requests() -> None:
    worker = make_worker()
    worker.generate(make_request(prompt=8, max_tokens=9))
    step(worker, 1.0, 2.0)
    assert worker.core.schedule(2.0) is not None
    worker.feed(StepFailed(message="no memory"), now=4.0)
    assert [type(message) for message in worker.told][-1] is Failed
    report = report_of(worker)
    assert bars(report)[-1] == ("decode_queue", 2.0, 4.0)
    assert counts(report) == (8, 0, 0, 0)


def test_a_request_that_is_refused_is_not_told() -> None:
    worker = make_worker(max_num_requests=0)
    worker.generate(make_request())
    assert worker.reports == []


@pytest.mark.parametrize("n", [1, 3])
def test_a_prompt_handed_over_is_told_by_both_workers(n: int) -> None:
    pair = Pair(max_num_batched_tokens=8)
    spec = make_request(prompt=14, max_tokens=3, n=n)
    pair.reserve(spec, now=1.0)
    pair.carry(pair.p.prefill(spec, now=1.0), now=1.0)
    pair.carry(step(pair.p, 2.0, 3.0), now=3.0)
    pair.finish_pulls(now=3.5)
    pair.carry(step(pair.p, 3.0, 4.0), now=4.0)
    assert bars(report_of(pair.p)) == [
        ("queue", 1.0, 2.0),
        ("prefill_chunk", 2.0, 3.0),
        ("prefill_chunk", 3.0, 4.0),
    ]
    assert counts(report_of(pair.p)) == (14, 0, 0, 0)
    pair.finish_pulls(now=5.0)
    pair.carry(pair.d.start("r", *[500] * n, now=6.0), now=6.0)
    for number in range(2):
        assert not pair.d.reports
        step(pair.d, 7.0 + number, 8.0 + number)
    report = report_of(pair.d)
    assert bars(report) == [
        ("transfer", 3.0, 3.5),
        ("transfer", 4.0, 5.0),
        ("decode_queue", 6.0, 7.0),
        ("decode", 7.0, 9.0),
    ]
    block_bytes = pair.d.core.config.kv_spec.block_bytes
    assert [phase.num_bytes for phase in report.phases] == [2 * block_bytes, 2 * block_bytes, 0, 0]
    assert [phase.peer for phase in report.phases] == ["p", "p", "", ""]
    assert report.phases[-1].num_tokens == 2 * n
    assert counts(report) == (0, 0, 14, 0)


def test_blocks_that_were_here_already_count_as_cached_and_the_others_as_remote() -> None:
    pair = Pair()
    pair.hand_over(make_request("a", prompt=8, max_tokens=2))
    pair.d.step()
    pair.hand_over(make_request("b", prompt=14, max_tokens=2))
    pair.d.step()
    assert counts(report_of(pair.d, "b")) == (0, 8, 6, 0)


def test_blocks_that_another_request_imports_count_as_remote() -> None:
    pair = Pair()
    for name in "ab":
        pair.reserve(make_request(name, prompt=8, max_tokens=2))
    for name in "ab":
        pair.prefill(make_request(name, prompt=8, max_tokens=2))
    pair.finish_pulls()
    for name in "ab":
        pair.carry(pair.d.start(name, 500))
    pair.d.step()
    assert counts(report_of(pair.d, "a")) == counts(report_of(pair.d, "b")) == (0, 0, 8, 0)


def test_lost_blocks_are_recomputed_and_counted_so() -> None:
    pair = Pair(by_checksum=True)
    pair.begin(make_request(prompt=14, max_tokens=2))
    pair.broken_blocks = {2}
    pair.finish_pulls(now=1.0)
    pair.carry(pair.d.start("r", 500, now=2.0))
    step(pair.d, 3.0, 4.0)
    report = report_of(pair.d)
    assert counts(report) == (0, 0, 8, 6)
    assert bars(report) == [
        ("transfer", 0.0, 1.0),
        ("decode_queue", 2.0, 3.0),
        ("prefill_chunk", 3.0, 4.0),
        ("decode", 3.0, 4.0),
    ]
    block_bytes = pair.d.core.config.kv_spec.block_bytes
    assert [(phase.num_tokens, phase.num_bytes) for phase in report.phases] == [
        (0, 3 * block_bytes),
        (0, 0),
        (6, 0),
        (1, 0),
    ]


def test_a_reservation_cancelled_during_its_copy_is_told_with_the_copy() -> None:
    pair = Pair()
    spec = make_request(prompt=8, max_tokens=3)
    pair.reserve(spec, now=1.0)
    pair.prefill(spec, now=2.0)
    pair.d.cancel("r", now=4.0)
    report = report_of(pair.d)
    assert bars(report) == [("transfer", 2.0, 4.0)]
    assert [phase.num_bytes for phase in report.phases] == [0]
    pair.finish_pulls(now=5.0)
    assert pair.d.reports == [report]


@pytest.mark.parametrize("is_fenced", [True, False])
def test_an_aborted_copy_ends_when_nothing_writes_any_more(is_fenced: bool) -> None:
    pair = Pair()
    spec = make_request(prompt=8, max_tokens=2)
    pair.reserve(spec)
    pair.prefill(spec, now=1.0)
    (pull,) = pair.pulls
    pair.d.wait(9.0)
    pair.d.feed(PullAborted(pull_id=pull.pull_id, is_fenced=is_fenced), now=10.0)
    if not is_fenced:
        pair.d.feed(PullDone(pull_id=pull.pull_id), now=11.0)
    pair.carry(pair.d.start("r", 500, now=12.0))
    step(pair.d, 12.0, 13.0)
    report = report_of(pair.d)
    assert bars(report)[0] == ("transfer", 1.0, 10.0 if is_fenced else 11.0)
    assert counts(report) == (0, 0, 0, 8)


def test_preempted_tokens_are_recomputed_or_found_again_and_counted_once() -> None:
    worker = make_worker(num_blocks=6, enable_prefix_caching=False)
    for index, name in enumerate("ab"):
        worker.generate(make_request(name, prompt=10, first=100 * index, max_tokens=8), now=index)
    while worker.core.num_requests:
        worker.step(now=2.0)
    assert counts(report_of(worker, "a")) == (10, 0, 0, 0)
    assert counts(report_of(worker, "b")) == (0, 0, 0, 10)
    chunks = [p.num_tokens for p in report_of(worker, "b").phases if p.name == "prefill_chunk"]
    assert chunks == [10, 10]


def test_what_a_preempted_request_finds_in_the_cache_stays_computed() -> None:
    worker = make_worker(num_blocks=6)
    for index, name in enumerate("ab"):
        worker.generate(make_request(name, prompt=10, first=100 * index, max_tokens=8), now=index)
    while worker.core.num_requests:
        worker.step(now=2.0)
    num_computed, num_cached, num_remote, num_recomputed = counts(report_of(worker, "b"))
    assert (num_cached, num_remote) == (0, 0)
    assert num_computed + num_recomputed == 10
    assert num_recomputed > 0


def test_phases_beyond_the_maximum_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_log, "MAX_PHASES", 4)
    worker = make_worker(max_num_batched_tokens=2)
    worker.generate(make_request(prompt=20, max_tokens=3))
    worker.run()
    report = report_of(worker)
    names = [phase.name.value for phase in report.phases]
    assert names == ["queue", *["prefill_chunk"] * 3, "decode_queue", "decode"]
    assert report.num_left_out == 7
    assert counts(report) == (20, 0, 0, 0)


def test_nothing_is_remembered_for_each_token() -> None:
    worker = make_worker(num_blocks=64)
    worker.generate(make_request(prompt=8, max_tokens=200))
    worker.run()
    assert len(report_of(worker).phases) == 4
