"""Says how far the weights of a model are read: a bar on a terminal, else now and then a line in the log."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

from tqdm import tqdm

_LINE_EVERY_S: Final = 5.0
logger = logging.getLogger(__name__)


class _Bar(tqdm):  # type: ignore[type-arg]
    monitor_interval = 0
    """No thread of its own, which processes that fork must not have."""


class ReadingProgress:
    """Counts bytes, up to `total_bytes`."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._num_bytes = 0
        self._next_line_s = time.monotonic() + _LINE_EVERY_S
        disable = None if sys.stderr else True  # None shows the bar on a terminal alone
        self._bar = _Bar(
            total=total_bytes, desc="Reading weights", unit="B", unit_scale=True, disable=disable, leave=False
        )

    def add(self, num_bytes: int) -> None:
        """Count bytes that were read; the bar goes with the last of them."""
        self._num_bytes += num_bytes
        self._bar.update(num_bytes)
        if self._num_bytes >= self._total_bytes:
            self._bar.close()
        elif self._bar.disable and time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_EVERY_S
            read, total = self._num_bytes / 2**30, self._total_bytes / 2**30
            logger.info("%.1f of %.1f GiB of weights are read", read, total)
