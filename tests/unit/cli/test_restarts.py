"""The waits before a process is started again, and what is said of its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton.processes.restarts import MAX_WAIT_S, Restarts, is_start_hopeless
from baton.processes.router_group import RouterGroup
from baton.processes.supervised_router import SupervisedRouter
from baton.processes.supervised_worker import SupervisedWorker


def test_the_waits_double_up_to_a_minute_and_never_end() -> None:
    restarts = Restarts()
    waits = [restarts.on_end(3.0, -9, "") for _ in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (restarts.num_ends, restarts.end) == (9, "was killed by SIGKILL")


def test_a_process_that_served_for_a_minute_begins_with_the_shortest_wait_again() -> None:
    restarts = Restarts()
    for _ in range(5):
        restarts.on_end(1.0, 1, "")
    assert restarts.on_end(MAX_WAIT_S, 1, "out of memory") == 1.0
    assert restarts.reason == "out of memory"
    assert restarts.on_end(1.0, 1, "") == 2.0


def test_a_process_that_was_told_to_stop_is_started_at_once_and_counts_as_no_failure() -> None:
    restarts = Restarts()
    assert [restarts.on_end(1.0, 0, "") for _ in range(3)] == [0.0] * 3
    assert restarts.on_end(1.0, 1, "") == 1.0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "was told to stop"),
        (2, "ended with exit code 2"),
        (-15, "was killed by SIGTERM"),
        (-63, "was killed by signal 63"),
    ],
)
def test_an_end_is_told_in_words(code: int, text: str) -> None:
    restarts = Restarts()
    restarts.on_end(1.0, code, "")
    assert (restarts.end, restarts.first_code) == (text, code)


def ended(*codes: int) -> Restarts:
    restarts = Restarts()
    for code in codes:
        restarts.on_end(1.0, code, "")
    return restarts


def test_a_start_is_hopeless_once_every_worker_refuses_its_settings_or_keeps_ending() -> None:
    refused, killed, running = ended(2), ended(-9, 2), ended()
    assert is_start_hopeless([refused, ended(2, -9)], has_served=False)
    assert not is_start_hopeless([refused, killed], has_served=False)
    assert not is_start_hopeless([refused, running], has_served=False)
    assert not is_start_hopeless([refused, refused], has_served=True)
    keeps_ending, ends_again = ended(-9, 1, -9, -9), ended(-9, 1, -9)
    assert is_start_hopeless([refused, keeps_ending], has_served=False)
    assert not is_start_hopeless([ends_again, keeps_ending], has_served=False)
    assert not is_start_hopeless([keeps_ending], has_served=True)


def test_the_log_says_why_a_process_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*args: Any, **options: Any) -> None:
        raise BlockingIOError(11, "too many processes")

    async def scenario() -> None:
        router = SupervisedRouter((), stop_within_s=0, report_workers=None, announce=None)
        assert await router.run() == 1
        assert await RouterGroup((), 2, stop_within_s=0).run() == 1
        worker = SupervisedWorker(
            "mixed-worker", "m0", (), stop_within_s=0, on_change=lambda: None, gives_up=lambda: True
        )
        assert await worker.run() == 1

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    asyncio.run(scenario())
    assert caplog.messages == [
        "the router cannot be started: [Errno 11] too many processes",
        "router process 0 cannot be started: [Errno 11] too many processes",
        "worker m0 cannot be started: [Errno 11] too many processes",
        "worker m0 ended with exit code 1",
    ]


def test_a_worker_that_ends_while_all_are_told_to_stop_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*args: Any, **options: Any) -> None:
        worker.let_end()
        raise BlockingIOError(11, "too many processes")

    worker = SupervisedWorker(
        "mixed-worker", "m0", (), stop_within_s=0, on_change=lambda: None, gives_up=lambda: False
    )
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    assert asyncio.run(asyncio.wait_for(worker.run(), 10)) == 1
    assert not any("started again" in message for message in caplog.messages)
