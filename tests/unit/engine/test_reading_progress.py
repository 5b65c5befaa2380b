"""How far weights are read: a bar where a person sees it, lines where a log is kept."""

from __future__ import annotations

import logging
import os
import pty
import sys
import termios
import threading
from contextlib import suppress

import pytest

from baton_engine.checkpoint import reading_progress
from baton_engine.checkpoint.reading_progress import ReadingProgress


def test_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    monkeypatch.setattr(reading_progress.time, "monotonic", lambda: now)
    progress = ReadingProgress(4 << 30)
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            now += 4.0
            progress.add(1 << 30)
    assert [record.getMessage() for record in caplog.records] == ["2.0 of 4.0 GiB of weights are read"]


def test_a_script_without_stderr_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    ReadingProgress(2).add(1)


def test_a_terminal_has_a_bar_that_goes_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(threading.enumerate())
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with os.fdopen(theirs, "w") as terminal, caplog.at_level(logging.INFO):
        monkeypatch.setattr(sys, "stderr", terminal)
        progress = ReadingProgress(2_000_000)
        progress.add(1_000_000)
        progress._bar.refresh()
        progress.add(1_000_000)
        shown = _read_all(ours)
    os.close(ours)
    assert "Reading weights:  50%" in shown
    assert "1.00M/2.00M" in shown
    assert shown.split("\r")[-1].strip() == ""
    assert not caplog.records
    assert set(threading.enumerate()) <= before, "tqdm has started a thread"


def _read_all(terminal: int) -> str:
    os.set_blocking(terminal, False)
    shown = b""
    with suppress(BlockingIOError):
        while True:
            shown += os.read(terminal, 1 << 16)
    return shown.decode()
