"""A router of several processes at the same ports: each is started again alone, and all end together."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from baton.processes.banner import Announcement
from baton.processes.supervised_router import SupervisedRouter
from baton.processes.tasks import cancel, cancelled_at_end, ends_before
from baton_service.process import report

STOP_WITHIN_S: Final = 10.0
"""After the shutdown timeout."""
_MAX_TEMPORARY_BYTES: Final = 75
"""Longest path of a folder below which sockets are made: a socket's whole path has 107 bytes at most."""
_log = logging.getLogger(__name__)


class RouterGroup:
    """The processes of one router, in the place of one `SupervisedRouter`. Make it on its loop.

    The first takes the ports, which the others then share. They find each other in a folder that only their
    user may enter.

    Args:
        announce: makes an announcement of what the first process reports; None makes none.
        report_workers: as of `SupervisedRouter`, for each process.
    """

    def __init__(
        self,
        args: Sequence[str],
        num_processes: int,
        *,
        stop_within_s: float,
        report_workers: Callable[[int], Coroutine[Any, Any, None]] | None = None,
        announce: Callable[[dict[str, str], float], Announcement] | None = None,
    ) -> None:
        self.bound: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        """The addresses of all, once each listens."""
        self._args = tuple(args)
        self._num_processes = num_processes
        self._stop_within_s = stop_within_s
        self._report_workers = report_workers
        self._announce = announce

    async def run(self) -> int:
        """Keep all running until cancelled; returns the exit code of one that ends before it listens."""
        with tempfile.TemporaryDirectory(prefix="baton-router-", dir=_folder_for_sockets()) as folder:
            first = self._process(0, folder, self._announce)
            async with cancelled_at_end(first.run()) as running:
                if await ends_before(running, first.bound):
                    return running.result()
                return await self._run_others(running, first.bound.result(), folder)

    async def _run_others(self, first: asyncio.Task[int], addresses: dict[str, str], folder: str) -> int:
        ports = [addresses[name].rpartition(":")[2] for name in ("http_address", "address")]
        bound = (f"--port={ports[0]}", f"--grpc-port={ports[1]}")
        others = [self._process(index, folder, None, bound) for index in range(1, self._num_processes)]
        tasks = [first, *(asyncio.create_task(other.run()) for other in others)]
        all_bound = asyncio.create_task(_wait_for(others))
        try:
            await asyncio.wait([*tasks, all_bound], return_when=asyncio.FIRST_COMPLETED)
            if all_bound.done():
                self.bound.set_result(addresses)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            await cancel([all_bound, *tasks])

    def _process(
        self,
        index: int,
        folder: str,
        announce: Callable[[dict[str, str], float], Announcement] | None,
        ports: Sequence[str] = (),
    ) -> SupervisedRouter:
        return SupervisedRouter(
            (*self._args, *ports, "--group-member", f"{index}:{folder}"),
            stop_within_s=self._stop_within_s,
            report_workers=self._report_workers,
            announce=announce,
            name=f"router process {index}",
        )


def _folder_for_sockets() -> str:
    """Return the folder of temporary files, or /tmp if the path of a socket in it would be too long."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _MAX_TEMPORARY_BYTES else "/tmp"  # noqa: S108 (its own folder)


async def _wait_for(processes: Sequence[SupervisedRouter]) -> int:
    for process in processes:
        await process.bound
    return len(processes)


async def serve_group(
    args: Sequence[str], num_processes: int, stop_within_s: float, report_fd: int | None
) -> int:
    """Run a router of several processes until cancelled; reports their addresses.

    Returns the exit code of a process that ends before it listens.
    """
    group = RouterGroup(args, num_processes, stop_within_s=stop_within_s)
    async with cancelled_at_end(group.run()) as running:
        if not await ends_before(running, group.bound):
            addresses = group.bound.result()
            report(report_fd, address=addresses["address"], http_address=addresses["http_address"])
            _log.info("%d processes serve these ports", num_processes)
        return await running
