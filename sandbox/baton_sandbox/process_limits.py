"""Limits of one task of a bounded process, and how the kernel enforces them."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Bounds of one task. The kernel keeps to them whatever the task's code does."""

    cpu_s: float
    """Processor time of all its threads."""
    wall_s: float
    """Time that passes, so that a task that only waits ends too."""
    memory_bytes: int
    """Address space beyond what the process has when it starts."""
    niceness: int = 0
    num_tasks: int = 1
    """Tasks that one process does after each other; 1 keeps nothing from one task to the next."""

    def __str__(self) -> str:
        return f"{self.cpu_s:g} s of processor time, {self.wall_s:g} s and {self.memory_bytes // _MIB} MiB"

    def confine(self) -> None:
        """Bound this process for the rest of its life."""
        os.nice(self.niceness)
        _lower(resource.RLIMIT_AS, address_space_bytes() + self.memory_bytes)
        _lower(resource.RLIMIT_CORE, 0)
        _lower(resource.RLIMIT_FSIZE, 0)

    def start_timers(self) -> None:
        """End this process when a task's time is over: nothing in it catches the signals."""
        signal.setitimer(signal.ITIMER_REAL, self.wall_s)
        signal.setitimer(signal.ITIMER_PROF, self.cpu_s)


def stop_timers() -> None:
    """Stop what `start_timers` started."""
    for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0.0)


def address_space_bytes() -> int:
    """Address space of this process."""
    return _status("VmSize")


def anonymous_bytes() -> int:
    """Memory that this process holds and that is no file's."""
    return _status("RssAnon")


def _status(name: str) -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) * 1024


def _lower(which: int, limit: int) -> None:
    """Set a limit unless a lower one is in force."""
    _, hard = resource.getrlimit(which)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(which, (limit, limit))
