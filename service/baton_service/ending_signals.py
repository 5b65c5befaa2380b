"""Signals that end a process at once, also where it is the first one of a container. Loaded first of all."""

from __future__ import annotations

import os
import signal
from types import FrameType


def end_at(number: int) -> None:
    """Have a signal end this process, which the kernel does for each but PID 1 of a container."""
    signal.signal(number, _end if os.getpid() == 1 else signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
