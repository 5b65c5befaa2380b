"""Whoever logs never waits for whoever reads; what is lost is counted, and said."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton_service import log_writer
from baton_service.log_rate import BURST_LINES, RateLimit
from baton_service.log_writer import MAX_LINE_CHARACTERS, MAX_WAITING_LINES
from baton_service.logs import configure_logging, num_lines_lost
from tests.unit.service.log_file import LogFile

pytestmark = pytest.mark.slow

LINE = "x" * 1000


@pytest.fixture
def log_file(tmp_path: Path, root_logger_restored: None) -> LogFile:
    return LogFile(tmp_path / "log")


@pytest.fixture
def pipe(root_logger_restored: None) -> Iterator[tuple[int, int]]:
    """The two ends of a pipe; whoever writes closes with the test."""
    read_end, write_end = os.pipe()
    yield read_end, write_end
    os.close(read_end)
    logging.getLogger().handlers[0].close()
    os.close(write_end)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read_lines(read_end: int, last: str) -> list[str]:
    """Read a pipe until a line has `last`."""
    with os.fdopen(os.dup(read_end)) as reading:
        lines = []
        for line in reading:
            lines.append(line)
            if last in line:
                return lines
    raise AssertionError(f"no line has {last!r}")


def test_a_pipe_that_nobody_reads_holds_nobody_up_and_tells_its_losses(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    configure_logging("router", file_descriptor=write_end)
    log = logging.getLogger("baton_router.test")
    num_lines = 2 * MAX_WAITING_LINES
    for number in range(num_lines):  # it would not return
        log.info("%d %s", number, LINE)
    num_lost = num_lines_lost()["unread"]
    assert num_lines - MAX_WAITING_LINES - 100 <= num_lost < num_lines
    lines = read_lines(read_end, "were dropped")
    assert len(lines) == num_lines - num_lost + 1
    assert f" 0 {LINE}" in lines[0]
    assert f"WARNING router {num_lost} log lines were dropped because they were not read" in lines[-1]
    log.info("on it goes")
    assert "on it goes" in read_lines(read_end, "on it goes")[-1]
    assert num_lines_lost()["unread"] == num_lost


def test_a_pipe_whose_reader_is_gone_loses_lines_and_nothing_else(root_logger_restored: None) -> None:
    read_end, write_end = os.pipe()
    configure_logging("router", file_descriptor=write_end)
    os.close(read_end)
    log = logging.getLogger("baton_router.test")
    log.info("unheard")
    until(lambda: num_lines_lost()["unread"] > 0)
    logging.getLogger().handlers[0].close()
    os.close(write_end)


def test_a_pipe_that_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    os.set_blocking(write_end, False)
    configure_logging("router", file_descriptor=write_end)
    log = logging.getLogger("baton_router.test")
    for number in range(200):
        log.info("%d %s", number, LINE)
    log.info("the last")
    assert len(read_lines(read_end, "the last")) == 201
    assert num_lines_lost()["unread"] == 0


def test_a_process_ends_although_nobody_reads_and_otherwise_with_its_last_line() -> None:
    program = (
        "import logging; from baton_service.logs import configure_logging; configure_logging('router')\n"
        f"for number in range(500): logging.info('%d {LINE}', number)"
    )
    with subprocess.Popen((sys.executable, "-c", program), stderr=subprocess.PIPE, text=True) as process:
        assert process.wait(60) == 0
    with subprocess.Popen((sys.executable, "-c", program), stderr=subprocess.PIPE, text=True) as process:
        assert " 499 x" in process.communicate(timeout=60)[1].splitlines()[-1]


def test_a_process_without_stderr_logs_nowhere() -> None:
    program = (
        "import logging, os; from baton_service.logs import configure_logging; configure_logging('router')\n"
        "read_end, write_end = os.pipe(); logging.info('hello'); logging.shutdown()\n"
        "os.set_blocking(read_end, 0)\n"
        "try: print(os.read(read_end, 99))\nexcept BlockingIOError: print('nothing')"
    )
    command = f"exec {sys.executable} -c '{program.replace(chr(39), chr(34))}' 2>&-"
    said = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert said.stdout == "nothing\n"


def test_a_line_is_cut_where_it_is_too_long(log_file: LogFile) -> None:
    log_file.configure().info("x" * 10**6)
    assert log_file.text().endswith("x [cut]\n")
    assert len(log_file.text()) == MAX_LINE_CHARACTERS + 1


def test_a_line_that_cannot_be_formatted_says_so(log_file: LogFile) -> None:
    log_file.configure().warning("%d", "one")
    assert "WARNING baton_router.test: '%d' cannot be formatted: TypeError" in log_file.text()


def test_threads_log_whole_lines(log_file: LogFile) -> None:
    log = log_file.configure()

    def log_some(name: str) -> None:
        for _ in range(100):
            log.info(name * 200)

    threads = [threading.Thread(target=log_some, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [line.rpartition(" ")[2] for line in log_file.text().splitlines()]
    assert sorted(lines) == sorted(name * 200 for name in "abcd" for _ in range(100))


def test_the_same_warning_over_and_over_is_counted_and_another_one_is_not(
    log_file: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "_REPORT_EVERY_S", 0.1)
    log = log_file.configure()
    for number in range(10 * BURST_LINES):
        log.warning("closed %d", number)
    log.warning("the disk is full")
    until(lambda: "more lines like this one" in log_file.text())
    text = log_file.text()
    num_said = len(re.findall(r"router closed \d+", text))
    counts = [
        int(count) for count in re.findall(r"(\d+) more lines like this one were suppressed: closed", text)
    ]
    assert BURST_LINES <= num_said < 2 * BURST_LINES
    assert num_said + sum(counts) == 10 * BURST_LINES
    assert num_lines_lost()["repeated"] == sum(counts)
    assert "the disk is full" in text


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def record(line: int, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("name", level, "file.py", line, "text %d\nmore", (line,), None)


def test_a_line_that_cannot_be_formatted_is_counted_like_any_other() -> None:
    limit = RateLimit(Clock())
    wrong = logging.LogRecord("name", logging.ERROR, "file.py", 1, "%d", ("no number",), None)
    assert [limit.filter(wrong) for _ in range(BURST_LINES + 2)] == [True] * BURST_LINES + [False] * 2
    (said,) = limit.take_suppressed()
    assert said.getMessage().startswith(
        "2 more lines like this one were suppressed: '%d' cannot be formatted"
    )


def test_a_call_site_earns_a_line_each_second_and_what_is_below_a_warning_passes() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    assert [limit.filter(record(1)) for _ in range(BURST_LINES + 2)] == [True] * BURST_LINES + [False] * 2
    assert limit.filter(record(2))
    assert all(limit.filter(record(3, logging.INFO)) for _ in range(2 * BURST_LINES))
    clock.now_s = 3.0
    assert [limit.filter(record(1)) for _ in range(4)] == [True] * 3 + [False]
    said = list(limit.take_suppressed())
    assert [one.getMessage() for one in said] == ["3 more lines like this one were suppressed: text 1"]
    assert list(limit.take_suppressed()) == []
    assert limit.num_suppressed == 3


CONFIGURES_LATE = """
import logging, logging.config
from baton_service.logs import configure_logging
configure_logging("worker")
logging.getLogger("a").info("before")
logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
logging.getLogger("a").info("after")
for number in range(100):
    logging.getLogger("b").info("line %d", number)
"""


def test_a_library_that_configures_logging_late_does_not_end_the_log() -> None:
    done = subprocess.run((sys.executable, "-c", CONFIGURES_LATE), capture_output=True, text=True, check=True)
    told = [line.rpartition(" worker ")[2] for line in done.stderr.splitlines()]
    assert told == ["before", "after", *(f"line {number}" for number in range(100))]
