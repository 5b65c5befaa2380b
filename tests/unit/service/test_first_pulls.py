from __future__ import annotations

import logging

import pytest

from baton_core.worker.worker_events import PullDone
from baton_worker.first_pulls import FirstPull, FirstPulls, measure_expected


def outcome(num_bytes: int = 2**20, error: str = "") -> PullDone:
    failed = (3,) if error else ()
    return PullDone(pull_id=1, failed_block_ids=failed, error=error, num_bytes=num_bytes, seconds=0.001)


def test_the_first_copy_from_each_start_of_a_worker_is_told_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pulls = FirstPulls({"tcp": 2e9})
    with caplog.at_level(logging.INFO):
        pulls.note("p", outcome())
        pulls.begin("p", "tcp")
        pulls.note("p", outcome(num_bytes=0, error="a checksum differs"))
        pulls.note("p", outcome())
        pulls.note("p", outcome(num_bytes=2**30))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "first blocks of worker p came over tcp: 1.000 MiB in 1.00 ms, 1.05 GB/s; "
        "this machine's best for as much as a block is 2.00 GB/s"
    )
    first = FirstPull(transport="tcp", bytes_per_s=2**20 / 0.001, expected_bytes_per_s=2e9)
    assert dict(pulls.by_source) == {"p": first}
    pulls.begin("p", "shared_memory")
    pulls.note("p", outcome())
    assert pulls.by_source["p"].transport == "shared_memory"
    assert pulls.by_source["p"].expected_bytes_per_s == 0


def test_what_is_expected_is_measured_here() -> None:
    expected = measure_expected(2**20)
    assert set(expected) == {"shared_memory", "tcp"}
    assert all(1e6 < speed < 1e13 for speed in expected.values())
