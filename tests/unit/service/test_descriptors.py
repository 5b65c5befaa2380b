"""A process raises its limit of open files and keeps a reserve."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from baton_core.errors import InvalidConfigError
from baton_service.descriptors import MIN_DESCRIPTORS, DescriptorShares, raise_descriptor_limit
from baton_service.grpc_options import MAX_CONNECTIONS


@pytest.fixture(autouse=True)
def limits_restored() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def allow(num_descriptors: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_descriptors, hard))


def test_standard_files_that_are_closed_are_opened_in_their_places() -> None:
    program = (
        "from baton_service.descriptors import open_standard_files; open_standard_files(); import os, sys\n"
        "files = (sys.stdin, sys.stdout, sys.stderr)\n"
        "same = all(os.fstat(file.fileno()).st_rdev == os.stat(os.devnull).st_rdev for file in files)\n"
        "sys.exit([file.fileno() for file in files] != [0, 1, 2] or not same)"
    )
    command = f"exec {sys.executable} -c '{program}' <&- >&- 2>&-"
    subprocess.run(command, shell=True, timeout=60, check=True)


def test_the_soft_limit_becomes_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow(1024)
    raise_descriptor_limit()
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize("max_http", [1, 100, 8192])
def test_all_connections_together_leave_descriptors_over(max_http: int) -> None:
    allow(1024)
    shares = DescriptorShares.divide(max_http)
    num_open = len(os.listdir("/proc/self/fd"))
    assert shares.num_allowed == 1024
    assert 1 <= shares.max_http <= max_http
    assert shares.max_grpc > 100
    assert num_open + shares.max_http + shares.max_grpc < 1024 - 100


def test_many_descriptors_are_not_all_for_connections() -> None:
    raise_descriptor_limit()
    shares = DescriptorShares.divide(1)
    assert shares.max_http == 1
    assert shares.max_grpc <= MAX_CONNECTIONS


def test_too_few_descriptors_are_refused() -> None:
    allow(MIN_DESCRIPTORS - 1)
    with pytest.raises(
        InvalidConfigError, match=r"limit of open files \(ulimit -n\) is 255; allowed: 256 or more"
    ):
        DescriptorShares.divide(8192)
