"""The thread that writes a process's log lines, so that logging never waits for a reader."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import select
import threading
import time
from contextlib import suppress
from typing import Final

from baton_service.log_rate import RateLimit

MAX_WAITING_LINES: Final = 2048
MAX_LINE_CHARACTERS: Final = 16 * 2**10
"""Characters of a line with its traceback; the rest is cut off."""
FLUSH_WITHIN_S: Final = 2.0
"""Time that the end of a process waits for its last lines."""
_REPORT_EVERY_S: Final = 5.0
_JOIN_WITHIN_S: Final = 0.5
_CUT: Final = " [cut]"


class LogWriter(logging.Handler):
    """Queues lines for its thread, which writes them to a file descriptor; a full queue drops new ones.

    Lost lines are counted, and reported once lines are read again. A writer that is closed goes on with the
    next line: `logging.config` closes all handlers of a process, whichever library calls it.
    """

    def __init__(self, file_descriptor: int) -> None:
        super().__init__()
        self._fd = file_descriptor
        self.rate_limit = RateLimit()
        self.addFilter(self.rate_limit)
        # A queue with locks of Python's would deadlock: garbage collection may log amid a put.
        self._queue: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        self.num_dropped = 0
        """Lines dropped so far because they were not read."""
        self._num_dropped_reported = 0
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # the standard library's report of it would wait for a reader
            line = f"{record.levelname} {record.name}: {record.msg!r} cannot be formatted: {error!r}"
        if self._queue.qsize() >= MAX_WAITING_LINES:
            self.num_dropped += 1
            return
        if len(line) > MAX_LINE_CHARACTERS:
            line = line[: MAX_LINE_CHARACTERS - len(_CUT)] + _CUT
        self._queue.put(line)
        if not self._thread.is_alive():
            self._go_on()

    def _go_on(self) -> None:
        """Write again after a close; `logging` has forgotten it, and flushes it no more at the end."""
        with suppress(RuntimeError):  # the process ends
            self._start()
            atexit.register(self.flush)

    def flush(self) -> None:
        """Wait until all lines so far are written, or `FLUSH_WITHIN_S` are over."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            is_written = threading.Event()
            self._queue.put(is_written)
            is_written.wait(FLUSH_WITHIN_S)

    def close(self) -> None:
        """End the thread; one that waits for a reader ends with the process."""
        self._queue.put(None)
        self._thread.join(_JOIN_WITHIN_S)
        super().close()

    def _write_all(self) -> None:
        report_s = time.monotonic() + _REPORT_EVERY_S
        while True:
            try:
                item = self._queue.get(timeout=_REPORT_EVERY_S)
            except queue.Empty:
                item = ""
            if item and isinstance(item, str):
                self._write(item)
            if self._queue.empty():
                self._report_dropped()
            if not isinstance(item, str) or time.monotonic() >= report_s:
                for record in self.rate_limit.take_suppressed():
                    self._write(self.format(record))
                report_s = time.monotonic() + _REPORT_EVERY_S
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()

    def _report_dropped(self) -> None:
        if number := self.num_dropped - self._num_dropped_reported:
            self._num_dropped_reported += number
            text = "%d log lines were dropped because they were not read"
            record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (number,), None)
            self._write(self.format(record))

    def _write(self, line: str) -> None:
        rest = f"{line}\n".encode(errors="backslashreplace")
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:
                    waiting = select.poll()
                    waiting.register(self._fd, select.POLLOUT)
                    waiting.poll()
        except OSError:  # the reader is gone, or the disk is full
            self.num_dropped += 1
