"""A router knows workers that are not registered from the launcher that starts them."""

from __future__ import annotations

from msgspec.structs import replace

from baton_core.sessions.worker_info import Role
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.fleet.readiness import why_not_ready
from baton_router.core.worker_processes import WorkerProcess
from tests.builders import make_worker_info

LOADING = WorkerProcess(worker_id="d", role=Role.DECODE)
KILLED = WorkerProcess(
    worker_id="p", role=Role.PREFILL, retry_in_s=8.0, num_restarts=3, end="was killed by SIGKILL"
)


def fleet_of(*processes: WorkerProcess) -> Fleet:
    fleet = Fleet()
    for process in processes:
        fleet.processes.update(0.0, process)
    return fleet


def test_a_worker_without_a_session_is_loading_or_waits_for_its_next_start() -> None:
    absent = fleet_of(LOADING, KILLED).absent(5.5)
    assert [(one.worker_id, one.state, one.retry_in_s) for one in absent] == [
        ("d", "loading", None),
        ("p", "restarting", 2.5),
    ]
    text = "0 of 2 workers are registered: d is loading, p was killed by SIGKILL and is started again in 3 s"
    assert fleet_of(LOADING, KILLED).why_absent(5.5) == text


def test_a_worker_that_loads_again_is_named_with_its_last_end() -> None:
    (absent,) = fleet_of(replace(KILLED, retry_in_s=None)).absent(0.0)
    assert str(absent) == "p was killed by SIGKILL and is loading"


def test_a_wait_that_is_over_is_no_negative_one() -> None:
    (absent,) = fleet_of(KILLED).absent(100.0)
    assert absent.retry_in_s == 0.0


def test_a_registered_worker_is_not_absent() -> None:
    fleet = fleet_of(LOADING)
    fleet.join(make_worker_info("d", role=Role.DECODE))
    assert fleet.absent(0.0) == []
    assert fleet.why_absent(0.0) == ""
    assert fleet.processes.num_restarts == {"d": 0}


def test_a_process_that_runs_and_is_registered_no_longer_is_lost_until_it_ends() -> None:
    fleet = fleet_of(LOADING)
    fleet.join(make_worker_info("d", role=Role.DECODE))
    fleet.leave("d")
    (absent,) = fleet.absent(0.0)
    assert (absent.state, str(absent)) == ("lost", "d runs, but is registered no longer")
    fleet.processes.update(1.0, replace(LOADING, end="was killed by SIGKILL", retry_in_s=1.0))
    assert [one.state for one in fleet.absent(1.0)] == ["restarting"]
    fleet.processes.update(2.0, replace(LOADING, end="was killed by SIGKILL", num_restarts=1))
    assert [one.state for one in fleet.absent(2.0)] == ["loading"]


def test_a_reason_names_the_workers_that_are_awaited() -> None:
    absent = fleet_of(LOADING, KILLED).absent(0.0)
    prefills = "no worker prefills: p was killed by SIGKILL and is started again in 8 s"
    assert why_not_ready([], absent) == prefills
    assert why_not_ready([], absent[:1]) == "no worker prefills: none is registered"
