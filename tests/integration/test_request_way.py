"""The way of a request from HTTP to the scheduler, as it is served: how many files it passes."""

from __future__ import annotations

import asyncio

import pytest

from tools.request_way import passed_files, trace

MAX_FILES = 30


@pytest.mark.parametrize("path", ["/v1/chat/completions"])
def test_a_request_passes_few_files(path: str) -> None:
    recorder = asyncio.run(trace(path, num_requests=2))
    passed = passed_files(recorder)
    assert "router/baton_router/core/flow/request_flow.py" in passed
    assert passed[-1] == "worker/baton_worker/core/scheduler.py"
    assert len(passed) <= MAX_FILES, passed
