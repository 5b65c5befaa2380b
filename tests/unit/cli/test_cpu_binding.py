"""Workers share the cores of a machine."""

from __future__ import annotations

import os
import threading

import pytest

from baton.processes import cpu_binding
from baton.processes.cpu_binding import available_cpus, bind, worker_shares
from baton_core.errors import InvalidConfigError


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cpu_binding.OPENMP_THREADS, raising=False)
    monkeypatch.setattr(cpu_binding, "within_quota", lambda num_threads: num_threads)


def test_workers_with_four_cores_each_get_their_own() -> None:
    assert worker_shares("auto", 2, range(9)) == [("0,1,2,3", 4), ("4,5,6,7", 4)]
    assert worker_shares("auto", 1, (2, 3, 6, 7, 8)) == [("2,3,6,7,8", 5)]


def test_workers_with_fewer_share_all() -> None:
    assert worker_shares("auto", 2, range(7)) == [("none", 7)] * 2
    assert worker_shares("none", 2, range(64)) == [("none", 64)] * 2
    assert worker_shares("auto", 0, range(2)) == []


def test_each_worker_gets_the_cores_it_is_given() -> None:
    assert worker_shares("0-2,5|3|0", 3, range(6)) == [("0-2,5", 4), ("3", 1), ("0", 1)]


def test_threads_are_as_many_as_the_control_groups_give_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_binding, "within_quota", lambda num_threads: min(num_threads, 9))
    assert worker_shares("auto", 2, range(16)) == [("0,1,2,3,4,5,6,7", 4), ("8,9,10,11,12,13,14,15", 4)]
    assert worker_shares("auto", 4, range(16)) == [("none", 9)] * 4
    assert worker_shares("none", 2, range(16)) == [("none", 9)] * 2
    assert worker_shares("0-11|12", 2, range(16)) == [("0-11", 9), ("12", 1)]


@pytest.mark.parametrize(("given", "num_threads"), [("1", 1), ("3,2", 3), ("64", 7), ("", 7), ("many", 7)])
def test_threads_are_at_most_those_of_the_environment(
    given: str, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu_binding.OPENMP_THREADS, given)
    assert worker_shares("auto", 2, range(7)) == [("none", num_threads)] * 2
    assert worker_shares("0-6", 1, range(7)) == [("0-6", num_threads)]


def test_the_environment_limits_the_threads_of_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpu_binding.OPENMP_THREADS, "3")
    assert worker_shares("auto", 2, range(8)) == [("0,1,2,3", 3), ("4,5,6,7", 3)]


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("0-1", "a list of cores for each of the 2 workers, separated by |"),
        ("0|9", "lists such as 0-3,8 of the cores 0-3,6"),
        ("0|4-5", "lists such as 0-3,8 of the cores 0-3,6"),
        ("0|3-1", "lists such as 0-3,8 of the cores 0-3,6"),
        ("0|all", "lists such as 0-3,8 of the cores 0-3,6"),
        ("0|", "lists such as 0-3,8 of the cores 0-3,6"),
    ],
)
def test_what_is_no_share_is_refused_with_its_value(value: str, allowed: str) -> None:
    with pytest.raises(InvalidConfigError) as error:
        worker_shares(value, 2, (0, 1, 2, 3, 6))
    assert str(error.value).startswith(f"cpu_bind is {value!r}")
    assert allowed in str(error.value)


def test_threads_that_a_bound_process_starts_stay_on_its_cores() -> None:
    found: list[set[int]] = []

    def look() -> None:
        """Run on a thread of its own, with which the binding ends."""
        assert bind("none") == 0
        assert bind(str(available_cpus()[0])) == 1
        below = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        below.start()
        below.join()

    before = available_cpus()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [{before[0]}]
    assert available_cpus() == before
