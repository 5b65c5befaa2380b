"""Limits the rate of each kind of log line: a client that can cause one line can cause any number."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

BURST_LINES: Final = 50
"""Lines of one call site that may come at once; it earns one more each second."""

_CallSite: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class _Allowance:
    """The allowance of one call site."""

    num_lines: float
    since_s: float
    num_suppressed: int = 0
    first: logging.LogRecord | None = None
    """The first suppressed line, without its traceback."""


class RateLimit(logging.Filter):
    """Passes warnings and errors of each call site up to a rate, and everything below a warning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._allowances: dict[_CallSite, _Allowance] = {}
        self.num_suppressed = 0
        """Lines suppressed so far."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now = self._clock()
        site = (record.pathname, record.lineno)
        allowance = self._allowances.setdefault(site, _Allowance(BURST_LINES, now))
        allowance.num_lines = min(BURST_LINES, allowance.num_lines + now - allowance.since_s)
        allowance.since_s = now
        if allowance.num_lines >= 1:
            allowance.num_lines -= 1
            return True
        allowance.num_suppressed += 1
        if allowance.first is None:
            allowance.first = _text_record(record)
        self.num_suppressed += 1
        return False

    def take_suppressed(self) -> Iterator[logging.LogRecord]:
        """Yield one record for each call site, with the number of lines suppressed since the last call."""
        for allowance in tuple(self._allowances.values()):
            number, first = allowance.num_suppressed, allowance.first
            if first is None:
                continue
            allowance.num_suppressed, allowance.first = 0, None
            first.msg = f"{number} more lines like this one were suppressed: {first.msg}"
            yield first


def _text_record(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record of a line's text alone, which nothing else is kept alive by."""
    try:
        text = record.getMessage().partition("\n")[0]
    except Exception as error:  # the caller's arguments do not fit its message
        text = f"{record.msg!r} cannot be formatted: {error!r}"
    return logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, (), None)
