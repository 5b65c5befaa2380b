"""A supervised router process, which keeps the addresses of its first start."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from baton.processes.banner import UNIX, Announcement, follow_reports
from baton.processes.child import Child, running
from baton.processes.restarts import Restarts
from baton.processes.tasks import cancelled_at_end
from baton_core.errors import ErrorCode, RequestError

_START_WITHIN_S: Final = 60.0
_log = logging.getLogger(__name__)


class SupervisedRouter:
    """One router's process, started again whenever it ends after it was bound. Make it on its loop.

    Args:
        report_workers: writes the states of the workers' processes to a pipe, until cancelled; None: there is
            nothing to write.
        announce: makes an announcement of the router's addresses and the time of its start; None makes none.
        name: its subject in log lines and errors.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        stop_within_s: float,
        report_workers: Callable[[int], Coroutine[Any, Any, None]] | None,
        announce: Callable[[dict[str, str], float], Announcement] | None,
        name: str = "the router",
    ) -> None:
        self.bound: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        """Its `address`, which is that of gRPC, and its `http_address`, once it listens."""
        self._args = tuple(args)
        self._stop_within_s = stop_within_s
        self._report_workers = report_workers
        self._announce = announce
        self._name = name
        self._restarts = Restarts()

    async def run(self) -> int:
        """Keep it running until cancelled; returns its exit code if it ends before it listens at all.

        Raises:
            RequestError: its first start takes too long.
        """
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            code, reason = await self._run_once(began_s)
            wait_s = self._restarts.on_end(loop.time() - began_s, code, reason)
            if not self.bound.done():
                return code
            log = _log.warning if code else _log.info
            log("%s %s; it is started again in %g s", self._name, self._restarts.end, wait_s)
            await asyncio.sleep(wait_s)

    async def _run_once(self, began_s: float) -> tuple[int, str]:
        """Return its exit code, and the error that it ended with."""
        try:
            async with AsyncExitStack() as stack:
                given_fds: tuple[int, ...] = ()
                if self._report_workers is not None:
                    read_fd, write_fd = os.pipe()
                    given_fds = (read_fd,)
                    await stack.enter_async_context(cancelled_at_end(self._report_workers(write_fd)))
                args = (*self._args, *(f"--workers-fd={file}" for file in given_fds))
                child = await stack.enter_async_context(
                    running("router", args, stop_within_s=self._stop_within_s, given_fds=given_fds)
                )
                addresses = await self._first_report(child)
                if "address" not in addresses:
                    return await child.wait(), addresses.get("error", "")
                self._note_bound(addresses)
                announcement = None if self._announce is None else self._announce(addresses, began_s)
                async with cancelled_at_end(follow_reports(announcement, child.reports)):
                    return await child.wait(), ""
        except (OSError, RuntimeError) as error:
            reason = f"{self._name} cannot be started: {error}"
            _log.error("%s", reason)
            return 1, reason

    def _note_bound(self, addresses: dict[str, str]) -> None:
        """Keep the ports: workers and clients know them."""
        if not self.bound.done():
            http, grpc = addresses["http_address"], addresses["address"]
            if not http.startswith(UNIX):
                self._args += (f"--port={http.rpartition(':')[2]}",)
            self._args += (f"--grpc-port={grpc.rpartition(':')[2]}",)
            self.bound.set_result(addresses)

    async def _first_report(self, child: Child) -> dict[str, str]:
        """Return its addresses once it listens; if it ends instead, its `error` or nothing."""
        try:
            async with asyncio.timeout(_START_WITHIN_S):
                return await child.next_report() or {}
        except TimeoutError:
            child.process.kill()
            text = f"{self._name} did not report its addresses within {_START_WITHIN_S:g} s"
            if not self.bound.done():
                raise RequestError(ErrorCode.UNAVAILABLE, text) from None
            _log.error("%s", text)
            return {}
