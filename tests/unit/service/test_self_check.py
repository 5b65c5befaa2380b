"""A worker that has lost track of a block finds out when it is idle, says so, and takes no more requests."""

from __future__ import annotations

import logging

import pytest

from baton_core.errors import ErrorCode
from baton_core.sessions.router_messages import Generate
from baton_core.worker.worker_events import FromRouter
from baton_worker.core.worker_core import WorkerCore
from baton_worker.self_check import SelfCheck
from tests.builders import make_request
from tests.unit.core.workers import Worker, make_worker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker() -> Worker:
    return make_worker()


def leak(core: WorkerCore) -> None:
    """Lose a block, as a wrong transition would."""
    core.pool._free.popleft()


def look(check: SelfCheck, clock: Clock, at_s: float) -> None:
    clock.now = at_s
    check.evaluate()


def test_a_leak_is_found_when_idle_and_ends_the_taking_of_requests(
    worker: Worker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    check = SelfCheck(worker.core, clock)
    leak(worker.core)
    check.note()
    assert check.next_deadline() == 105.0
    look(check, clock, 104.9)
    assert worker.core.load(0.0).fault == ""
    with caplog.at_level(logging.ERROR):
        look(check, clock, 105.0)
        check.note()
        look(check, clock, 1000.0)
    (record,) = caplog.records
    assert "blocks [0] are free by their states alone" in record.getMessage()
    load = worker.core.load(0.0)
    assert load.fault.startswith("AssertionError: blocks [0] are free")
    assert not load.is_taking
    command = FromRouter(router_id="r", message=Generate(spec=make_request()))
    (refused,) = [effect.message for effect in worker.core.on_event(0.0, command)]
    assert (refused.code, refused.message) == (ErrorCode.UNAVAILABLE, f"the worker is faulty: {load.fault}")


def test_nothing_is_checked_while_a_step_computes(worker: Worker, clock: Clock) -> None:
    check = SelfCheck(worker.core, clock)
    worker.generate(make_request(max_tokens=2))
    assert worker.core.schedule(0.0) is not None
    leak(worker.core)
    check.note()
    assert check.next_deadline() is None
    look(check, clock, 1000.0)
    assert worker.core.load(0.0).fault == ""
