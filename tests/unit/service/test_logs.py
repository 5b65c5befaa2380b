"""A log line has its time, level, fields and message."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import InvalidConfigError
from baton_service.logs import configure_logging, current_request_id
from tests.unit.service.log_file import LogFile


@pytest.fixture
def log_file(tmp_path: Path, root_logger_restored: None) -> LogFile:
    return LogFile(tmp_path / "log")


def test_a_text_line_has_time_level_role_and_message(log_file: LogFile) -> None:
    log = log_file.configure()
    log.warning("worker %s left", "w1")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING router worker w1 left\n", log_file.text()
    )


async def test_writes_behind_the_end_of_a_connection_are_not_logged(log_file: LogFile) -> None:
    log_file.configure()
    ours, theirs = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    theirs.close()
    for _ in range(12):  # an answer of several events, written before the loop tells of the end
        transport.write(b"data: {}")
    assert log_file.text() == ""
    logging.getLogger("asyncio").warning("slow")
    assert log_file.text().endswith(" router slow\n")


def test_a_text_line_names_its_request(log_file: LogFile) -> None:
    log = log_file.configure()
    log.warning("late", extra={"request_id": "r1"})
    assert log_file.text().endswith(" router [r1] late\n")


def test_lines_name_the_process_among_those_of_its_role(log_file: LogFile) -> None:
    log_file.configure(names={"worker_id": "decode-1"}).warning("loading")
    assert log_file.text().endswith(" router decode-1 loading\n")
    log_file.configure(format="json", names={"worker_id": "decode-1"}).warning("loading")
    entry = json.loads(log_file.text().splitlines()[1])
    assert (entry["role"], entry["worker_id"], entry["pid"]) == ("router", "decode-1", os.getpid())


def test_a_json_line_is_one_object_with_the_request_of_the_context(log_file: LogFile) -> None:
    log = log_file.configure(format="json")
    token = current_request_id.set("r2")
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("failed")
    finally:
        current_request_id.reset(token)
    entry = json.loads(log_file.text())
    assert log_file.text().count("\n") == 1
    assert {name: entry[name] for name in ("level", "role", "logger", "message", "request_id")} == {
        "level": "error",
        "role": "router",
        "logger": "baton_router.test",
        "message": "failed",
        "request_id": "r2",
    }
    assert entry["exception"].endswith("ValueError: bad")


def test_a_json_line_outside_a_request_has_no_request_id(log_file: LogFile) -> None:
    log = log_file.configure(format="json")
    log.warning("up")
    assert "request_id" not in json.loads(log_file.text())


def test_lines_below_the_level_are_dropped(log_file: LogFile) -> None:
    log = log_file.configure(level="error")
    log.warning("up")
    assert log_file.text() == ""


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"format": "xml"}, "log format is 'xml'; allowed: text, json"),
        ({"level": "loud"}, "log level is 'loud'; allowed: debug, info, warning, error"),
    ],
)
def test_an_unknown_setting_is_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(message)):
        configure_logging("router", **setting)
