"""Processes of Baton that benchmarks start, with their addresses, CPU time and memory."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from baton.config.engine_args import BUNDLED_MODEL
from baton_service.tcp import listen_at

ROOT = Path(__file__).parents[1]
"""The repository, from which `python -m bench.NAME` runs."""
LOCALHOST = "127.0.0.1"
START_WITHIN_S = 60.0


def free_port() -> int:
    """Return a free TCP port of the loopback interface."""
    with listen_at(LOCALHOST, 0) as probe:
        return int(probe.getsockname()[1])


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, all threads, in steps of a nanosecond.

    Source: clock_getcpuclockid(3); CPUCLOCK_SCHED is 2.
    """
    return time.clock_gettime((~pid << 3) | 2)


def start_module(module: str, *arguments: str, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE` in a session of its own, so that an interrupt does not end it."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=pass_fds,
        start_new_session=True,
        cwd=ROOT,
    )


def start_router(
    *flags: str, module: Sequence[str] = ("baton", "router")
) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """Start a router of the bundled model at free ports.

    Args:
        module: the module that runs it, and its first arguments.

    Returns:
        The process, and its `address` (gRPC) and `http_address`.

    Raises:
        RuntimeError: it does not report where it listens.
    """
    read_fd, write_fd = os.pipe()
    ports = ("--port", "0", "--grpc-port", "0", "--report-fd", str(write_fd))
    options = (*ports, "--log-level", "error", "--parent-pid", str(os.getpid()))
    process = start_module(*module, BUNDLED_MODEL, *options, *flags, pass_fds=(write_fd,))
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        line = pipe.readline() if select.select([pipe], [], [], START_WITHIN_S)[0] else ""
    if not line:
        raise RuntimeError(f"the router did not report where it listens: {' '.join(flags)}")
    return process, json.loads(line)


def descendants(pid: int) -> list[int]:
    """Return the processes that `pid` has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found = children.get(pid, []).copy()
    for child in found:  # grows on the way
        found += children.get(child, [])
    return found


def kilobytes(pid: int, name: str) -> dict[str, int]:
    """Read the lines of a file of /proc that are sizes."""
    lines = (line.split() for line in Path(f"/proc/{pid}/{name}").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1] == "kB"}
