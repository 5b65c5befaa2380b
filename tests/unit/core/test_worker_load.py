"""The load that a worker reports."""

from __future__ import annotations

from baton_core.sessions.worker_info import MAX_REPORTED_WAITING
from baton_worker.core.scheduler_config import SchedulerConfig
from tests.builders import make_request
from tests.unit.core.workers import make_worker

ONE_AT_A_TIME = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=1)


def test_requests_wait_until_their_first_step() -> None:
    worker = make_worker(scheduler=ONE_AT_A_TIME)
    for name in ("first", "second", "third"):
        worker.generate(make_request(name, prompt=4))
    assert worker.core.load(0.0).waiting_request_ids == ("first", "second", "third")
    assert worker.core.schedule(0.0) is not None
    assert worker.core.load(0.0).waiting_request_ids == ("second", "third")


def test_the_last_ones_are_reported_of_many() -> None:
    worker = make_worker(scheduler=ONE_AT_A_TIME)
    names = [f"{number:04}" for number in range(MAX_REPORTED_WAITING + 3)]
    for name in names:
        worker.generate(make_request(name, prompt=4))
    assert worker.core.load(0.0).waiting_request_ids == tuple(names[3:])
