"""Log lines of a process: time, level, role and name of the process, and the request they are about.

A request is named by `extra={"request_id": ...}` or, for everything that runs on its behalf, by
`current_request_id`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_service.log_writer import LogWriter

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
STDERR: Final = 2
_WRITES_AFTER_THE_END: Final = ("socket.send() raised exception.", "SSL connection is closed")
"""Lines of asyncio about each write to a connection that the other end has broken, until its end is told."""

current_request_id: ContextVar[str] = ContextVar("request_id", default="")


def configure_logging(
    role: str,
    format: str = "text",  # noqa: A002 (the setting's name)
    level: str = "info",
    file_descriptor: int | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Send all of the process's log lines to a file (stderr when None); replaces what was configured.

    `names` tell the process from others of its role, by their fields of a line in JSON.

    A thread writes them, so logging never waits for a reader; the end of the process waits for it briefly.

    Raises:
        InvalidConfigError: `format` or `level` is unknown.
    """
    if format not in FORMATS:
        raise InvalidConfigError(f"log format is {format!r}; allowed: {', '.join(FORMATS)}")
    if level not in LEVELS:
        raise InvalidConfigError(f"log level is {level!r}; allowed: {', '.join(LEVELS)}")
    if file_descriptor is None and sys.stderr is not None:
        file_descriptor = STDERR
    handler = logging.NullHandler() if file_descriptor is None else LogWriter(file_descriptor)
    formatter = _JsonFormatter if format == "json" else _TextFormatter
    handler.setFormatter(formatter(role, names))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").addFilter(_is_of_interest)


def num_lines_lost() -> dict[str, int]:
    """Log lines that this process has not written: `unread` ones, and `repeated` ones over their rate."""
    writers = [handler for handler in logging.getLogger().handlers if isinstance(handler, LogWriter)]
    return {
        "unread": sum(writer.num_dropped for writer in writers),
        "repeated": sum(writer.rate_limit.num_suppressed for writer in writers),
    }


def _is_of_interest(record: logging.LogRecord) -> bool:
    return record.msg not in _WRITES_AFTER_THE_END


class _TextFormatter(logging.Formatter):
    def __init__(self, role: str, names: Mapping[str, str]) -> None:
        super().__init__()
        self._process = " ".join((role, *names.values()))

    def format(self, record: logging.LogRecord) -> str:
        request_id = _request_id(record)
        subject = f" [{request_id}]" if request_id else ""
        line = f"{_time(record)} {record.levelname:<7} {self._process}{subject} {record.getMessage()}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


class _JsonFormatter(logging.Formatter):
    """One object on one line; `request_id` and `exception` only where there is one."""

    def __init__(self, role: str, names: Mapping[str, str]) -> None:
        super().__init__()
        self._process = {"role": role, **names, "pid": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            **self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        optional = {"request_id": _request_id(record), "exception": _trace(self, record)}
        return json.dumps(entry | {name: value for name, value in optional.items() if value})


def _time(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _request_id(record: logging.LogRecord) -> str:
    return str(getattr(record, "request_id", "") or current_request_id.get())


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
