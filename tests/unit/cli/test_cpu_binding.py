"""Workers share the cores of a machine."""

from __future__ import annotations

import os
import threading

import pytest

from baton.processes.cpu_binding import available_cpus, bind, worker_shares
from baton_core.errors import InvalidConfigError


def test_workers_with_four_cores_each_get_their_own() -> None:
    assert worker_shares("auto", 2, range(9)) == [("0,1,2,3", 4), ("4,5,6,7", 4)]
    assert worker_shares("auto", 1, (2, 3, 6, 7, 8)) == [("2,3,6,7,8", 5)]


def test_workers_with_fewer_share_all() -> None:
    assert worker_shares("auto", 2, range(7)) == [("none", 7)] * 2
    assert worker_shares("none", 2, range(64)) == [("none", 64)] * 2
    assert worker_shares("auto", 0, range(2)) == []


def test_each_worker_gets_the_cores_it_is_given() -> None:
    assert worker_shares("0-2,5|3|0", 3, range(6)) == [("0-2,5", 4), ("3", 1), ("0", 1)]


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
