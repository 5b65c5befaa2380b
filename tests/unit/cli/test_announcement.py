"""The lines that a router writes to its launcher, from a real pipe."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable

import pytest

from baton.processes import banner
from baton.processes.banner import Announcement, Place, follow_reports
from baton.processes.tasks import cancelled_at_end
from baton_service.pipes import reading


def make_announcement() -> Announcement:
    place = Place(http="127.0.0.1:1", grpc="127.0.0.1:2")
    return Announcement(model_name="m", num_workers=2, place=place, began_s=0.0)


def status_line(num_workers: int, *, is_ready: bool) -> bytes:
    return json.dumps({"num_workers": {"mixed": num_workers}, "is_ready": is_ready}).encode() + b"\n"


async def announced(lines: bytes, until: Callable[[], bool]) -> None:
    """Write the lines of a router, and wait until they are acted on."""
    read_fd, write_fd = os.pipe()
    async with reading(read_fd) as reports, cancelled_at_end(follow_reports(make_announcement(), reports)):
        os.write(write_fd, lines)
        async with asyncio.timeout(10.0):
            while not until():  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0.01)
    os.close(write_fd)


async def test_the_banner_comes_once_when_every_worker_is_there(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, banner.__name__)
    ready = status_line(2, is_ready=True)
    lines = [status_line(1, is_ready=True), status_line(2, is_ready=False), ready, ready, b"end\n"]
    await announced(b"".join(lines), lambda: "cannot follow" in caplog.text)
    assert caplog.text.count("serving m with 2 mixed workers") == 1


async def test_a_line_that_cannot_be_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    await announced(b"no JSON\n", lambda: bool(caplog.records))
    (line,) = caplog.records
    assert line.exc_info is not None
    assert line.exc_info[0] is json.JSONDecodeError


async def test_the_task_and_the_pipe_end_with_their_blocks() -> None:
    read_fd, write_fd = os.pipe()
    before = asyncio.all_tasks()
    async with reading(read_fd) as reports:
        async with cancelled_at_end(follow_reports(make_announcement(), reports)):
            assert len(asyncio.all_tasks() - before) == 1
        assert asyncio.all_tasks() == before
    await asyncio.sleep(0)  # the transport closes its end in the loop's next turn
    with pytest.raises(BrokenPipeError):
        os.write(write_fd, b"x")
    os.close(write_fd)
