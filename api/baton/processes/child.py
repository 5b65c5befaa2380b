"""One child process of a launcher: its start, its reports and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from baton.processes.secret_flags import hide_secrets
from baton_service.pipes import reading
from baton_service.process import interrupts_held, module_command

_LAST_WORDS_WITHIN_S: Final = 1.0
"""Time to wait for the end of a report once its process is gone."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Child:
    """A running process, and the JSON lines that it reports."""

    process: asyncio.subprocess.Process
    reports: asyncio.StreamReader

    async def wait(self) -> int:
        """Wait until it has ended; returns its exit code."""
        return await self.process.wait()

    async def last_error(self) -> str:
        """Return the error that it ended with; empty where it reported none."""
        with suppress(TimeoutError, ValueError):
            async with asyncio.timeout(_LAST_WORDS_WITHIN_S):
                lines = (await self.reports.read()).splitlines()
            if lines:
                return str(json.loads(lines[-1]).get("error", ""))
        return ""

    async def next_report(self) -> dict[str, Any] | None:
        """Return the next line; None once there is no more."""
        line = await self.reports.readline()
        report: dict[str, Any] | None = json.loads(line) if line else None
        return report


@asynccontextmanager
async def running(
    command: str, args: Sequence[str], *, stop_within_s: float, given_fds: tuple[int, ...] = ()
) -> AsyncIterator[Child]:
    """Start a command of Baton, which ends with the block: by SIGTERM, or by SIGKILL if that does not end it.

    `given_fds` become the child's, and are closed here.

    Raises:
        OSError, RuntimeError: it cannot be started, for want of descriptors, processes or threads.
    """
    read_fd, write_fd = os.pipe()
    async with reading(read_fd) as reports:  # to the end: a process that cannot report complains
        try:
            process = await _start(command, (*args, "--report-fd", str(write_fd)), (write_fd, *given_fds))
        finally:
            for file_descriptor in (write_fd, *given_fds):
                os.close(file_descriptor)
        try:
            yield Child(process, reports)
        finally:
            await _end(process, stop_within_s)


async def _start(command: str, args: Sequence[str], pass_fds: tuple[int, ...]) -> asyncio.subprocess.Process:
    shown, environment = hide_secrets(args)
    with interrupts_held():
        return await asyncio.create_subprocess_exec(
            *(*module_command("baton"), command, "--parent-pid", str(os.getpid()), *shown),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=pass_fds,
        )


async def _end(process: asyncio.subprocess.Process, within_s: float) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.wait([waiting], timeout=within_s)
    if process.returncode is None:
        _log.warning("process %d did not end within %g s and is killed", process.pid, within_s)
        process.kill()
    await waiting
