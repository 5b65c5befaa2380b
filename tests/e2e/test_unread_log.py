"""A cluster whose log nobody reads: it starts, serves, is healthy, and ends."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import BATON, NO_GRAMMARS, ONE_MIXED, PATIENT, READY_WITHIN_S, stop
from tests.tiers import exhaustive

PIPE_BYTES = 4096
NUM_REQUESTS = 40
"""Requests whose log lines are more than the pipe holds."""


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that has room for no further byte."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(write_end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write_end, b"x")
    os.set_blocking(write_end, True)
    yield read_end, write_end
    os.close(read_end)


@pytest.mark.parametrize("command", ["router", exhaustive("decode-worker")])
def test_a_command_that_is_refused_ends_although_nobody_reads_why(
    command: str, full_pipe: tuple[int, int]
) -> None:
    _, write_end = full_pipe
    flags = {"router": ("--port", "0", "--grpc-port", "0"), "decode-worker": ("--router", "127.0.0.1:1")}
    process = subprocess.Popen((*BATON, command, "./nowhere", *flags[command]), stderr=write_end)
    os.close(write_end)
    try:
        assert process.wait(60) == 2
    finally:
        process.kill()
        process.wait()


@pytest.mark.exhaustive
@pytest.mark.timeout(240)
def test_a_log_that_nobody_reads_stops_nothing(full_pipe: tuple[int, int], tmp_path: Path) -> None:
    read_end, write_end = full_pipe
    report_end, report_fd = os.pipe()
    ports = ("--port", "0", "--grpc-port", "0", "--report-fd", str(report_fd))
    command = (*BATON, "serve", *ports, *PATIENT, *ONE_MIXED, *NO_GRAMMARS, "--metrics-port", "0")
    process = subprocess.Popen(command, cwd=tmp_path, pass_fds=(report_fd,), stderr=write_end)
    os.close(report_fd)
    os.close(write_end)
    try:
        with os.fdopen(report_end) as pipe:
            address = json.loads(pipe.readline())["http_address"]
        with httpx.Client(base_url=f"http://{address}", timeout=30.0) as client:
            deadline = time.monotonic() + READY_WITHIN_S
            while client.get("/health").status_code != 200:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            for _ in range(NUM_REQUESTS):
                answer = client.post("/v1/completions", json={"prompt": "The os module", "max_tokens": 4})
                assert answer.status_code == 200, answer.text
            assert client.get("/ping").status_code == 200
            assert "baton_log_lines_lost_total" in client.get("/metrics").text
        assert process.poll() is None
    finally:
        code = stop(process)
    assert code == 0
    os.set_blocking(read_end, False)
    assert set(os.read(read_end, 10 * PIPE_BYTES)) == set(b"x")
