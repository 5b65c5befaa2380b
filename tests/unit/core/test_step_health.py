"""Steps that fail in a row, and logits that are not finite: they end their requests, and then the worker
pauses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from baton_core.errors import ErrorCode
from baton_core.sessions.router_messages import Failed, FirstToken, Refused
from baton_core.worker.worker_events import StepDone, StepFailed
from baton_worker.core.step_health import FIRST_PAUSE_S, MAX_IN_A_ROW, MAX_PAUSE_S, MAX_TEXT
from tests.builders import make_request, step_result
from tests.unit.core.workers import Worker, make_worker

NAN = "the logits are not numbers (NaN)"


def break_step(worker: Worker, *, names: Collection[str] = (), now: float = 0.0) -> None:
    """Run a step in which the logits of the requests named, or of all, are not finite."""
    plan = worker.plan(now)
    slices = [piece.seq_id.request_id for piece in plan.slices]
    broken = frozenset(number for number, name in enumerate(slices) if not names or name in names)
    result = step_result(plan)
    sampled = tuple(() if number in broken else tokens for number, tokens in enumerate(result.sampled))
    failures = dict.fromkeys(broken, NAN)
    worker.feed(StepDone(result=replace(result, sampled=sampled, failures=failures, broken=broken)), now=now)


def break_request(worker: Worker, name: str, now: float = 0.0) -> None:
    worker.generate(make_request(name, prompt=4), now=now)
    break_step(worker, now=now)


def fail_request(worker: Worker, name: str, now: float = 0.0) -> None:
    worker.generate(make_request(name, prompt=4), now=now)
    assert worker.core.schedule(now) is not None
    worker.feed(StepFailed(message="no such operator"), now=now)


def fault(worker: Worker) -> str:
    return worker.core.load(0.0).fault


def test_broken_logits_end_their_request_alone_and_are_counted() -> None:
    worker = make_worker()
    for name in "abc":
        worker.generate(make_request(name, prompt=4))
    break_step(worker, names="b")
    assert worker.heard(Failed) == [Failed(request_id="b", code=ErrorCode.INTERNAL, message=NAN)]
    assert (worker.core.num_requests, worker.core.health.num_broken_sequences, fault(worker)) == (2, 1, "")


def test_what_a_broken_sequence_computed_is_found_by_nobody() -> None:
    worker = make_worker()
    worker.generate(make_request("a", prompt=12, max_tokens=4))
    worker.step()
    worker.generate(make_request("b", prompt=12, max_tokens=4))
    break_step(worker, names="b")
    worker.generate(make_request("c", prompt=12, max_tokens=4))
    worker.run()
    cached = {first.request_id: first.num_cached_tokens for first in worker.heard(FirstToken)}
    assert cached == {"a": 0, "c": 0}, "a's blocks, which b was given, are not to be trusted either"
    assert worker.core.pool.num_used == 0


def test_a_worker_pauses_after_some_in_a_row_and_says_why() -> None:
    worker = make_worker()
    for number in range(MAX_IN_A_ROW - 1):
        break_request(worker, f"a{number}")
    assert fault(worker) == ""
    break_request(worker, "last")
    assert fault(worker) == f"sequences end in a row: {NAN}"
    worker.generate(make_request("refused"))
    assert [refused.code for refused in worker.heard(Refused)] == [ErrorCode.UNAVAILABLE]


def test_failed_steps_count_alike() -> None:
    worker = make_worker()
    for number in range(MAX_IN_A_ROW):
        assert fault(worker) == ""
        fail_request(worker, f"a{number}")
    assert fault(worker) == "steps fail in a row: no such operator"
    assert worker.core.health.num_failed_steps == MAX_IN_A_ROW


def test_whatever_works_in_between_begins_the_count_anew() -> None:
    worker = make_worker()
    for number in range(4 * MAX_IN_A_ROW):
        if number % 2:
            fail_request(worker, f"a{number}")
        else:
            worker.generate(make_request(f"a{number}", prompt=4, max_tokens=1))
            worker.step()
    assert fault(worker) == ""


def test_one_request_with_many_sequences_is_one_failure() -> None:
    worker = make_worker()
    worker.generate(make_request("a", prompt=4, n=4))
    break_step(worker)
    assert (worker.core.health.num_broken_sequences, fault(worker)) == (1, "")


def test_steps_of_sequences_that_are_over_count_for_nothing() -> None:
    worker = make_worker(plans_ahead=True)
    for number in range(2 * MAX_IN_A_ROW):
        worker.generate(make_request(f"a{number}", prompt=4, max_tokens=9))
        worker.step()
        plans = [worker.core.schedule(0.0), worker.core.schedule(0.0)]
        assert all(plans)
        worker.feed(StepFailed(message="no such operator"))
        worker.feed(StepDone(result=step_result(plans[1])))
    assert worker.core.health.num_failed_steps == 2 * MAX_IN_A_ROW
    assert fault(worker) == "", "a prompt's step in between worked"
    for number in range(MAX_IN_A_ROW - 1):
        fail_request(worker, f"b{number}")
    assert fault(worker), "the step that ended for nobody was none that worked"


def test_a_reason_is_one_short_line() -> None:
    worker = make_worker()
    for number in range(MAX_IN_A_ROW):
        worker.generate(make_request(f"a{number}", prompt=4))
        assert worker.core.schedule(0.0) is not None
        worker.feed(StepFailed(message="x" * 5000 + "\nmore"))
    assert len(fault(worker)) == MAX_TEXT
    assert "\n" not in fault(worker)


def test_a_worker_that_is_alone_does_not_pause() -> None:
    worker = make_worker(pauses_when_failing=False)
    for number in range(2 * MAX_IN_A_ROW):
        fail_request(worker, f"a{number}")
    assert (fault(worker), worker.core.health.num_failed_steps) == ("", 2 * MAX_IN_A_ROW)


def test_rules_that_leave_no_token_are_not_the_workers_fault() -> None:
    worker = make_worker()
    for number in range(2 * MAX_IN_A_ROW):
        worker.generate(make_request(f"a{number}", prompt=4))
        result = replace(step_result(worker.plan()), sampled=((),), failures={0: "no token is left"})
        worker.feed(StepDone(result=result))
    assert (fault(worker), worker.core.health.num_broken_sequences) == ("", 0)


def test_a_pause_ends_and_each_further_failure_doubles_it() -> None:
    worker, now, pause_s = make_worker(), 0.0, FIRST_PAUSE_S
    for number in range(MAX_IN_A_ROW):
        fail_request(worker, f"a{number}", now)
    for number in range(8):
        worker.wait(now + pause_s - 0.1)
        assert fault(worker)
        now += pause_s
        worker.wait(now)
        assert fault(worker) == ""
        fail_request(worker, f"b{number}", now)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
    worker.wait(now + pause_s)
    worker.generate(make_request("good", prompt=4, max_tokens=1), now=now + pause_s)
    worker.step(now=now + pause_s)
    now += pause_s
    for number in range(MAX_IN_A_ROW):
        fail_request(worker, f"c{number}", now)
    worker.wait(now + FIRST_PAUSE_S - 0.1)
    assert fault(worker)
    worker.wait(now + FIRST_PAUSE_S)
    assert fault(worker) == ""
