"""A supervised worker process, and the launcher's reports to the router on all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from baton.processes.child import running
from baton.processes.restarts import Restarts
from baton_core.sessions.worker_info import Role
from baton_router.core.worker_processes import MAX_REASON_CHARACTERS, WorkerProcess
from baton_service.pipes import writing

_encoder: Final = msgspec.json.Encoder()
_log = logging.getLogger(__name__)


class SupervisedWorker:
    """One worker's process, started again whenever it ends.

    Args:
        on_change: called when it has ended, and when it is started again.
        gives_up: asked at each end whether no worker can ever serve.
    """

    def __init__(
        self,
        command: str,
        worker_id: str,
        args: Sequence[str],
        *,
        stop_within_s: float,
        on_change: Callable[[], None],
        gives_up: Callable[[], bool],
    ) -> None:
        self.restarts = Restarts()
        self._command = command
        self._worker_id = worker_id
        self._args = (*args, "--worker-id", worker_id)
        self._stop_within_s = stop_within_s
        self._on_change = on_change
        self._gives_up = gives_up
        self._retry_at_s: float | None = None
        self._is_kept = True

    def let_end(self) -> None:
        """Do not start it again: where all processes are told to stop, it may end before its turn."""
        self._is_kept = False

    async def run(self) -> int:
        """Keep it running until cancelled; returns its exit code once it is given up or let end."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            code, reason = await self._run_once()
            if not self._is_kept:
                return code
            wait_s = self.restarts.on_end(loop.time() - began_s, code, reason)
            if self._gives_up():
                _log.error("worker %s %s", self._worker_id, self.restarts.end)
                return code
            log = _log.warning if code else _log.info
            log("worker %s %s; it is started again in %g s", self._worker_id, self.restarts.end, wait_s)
            self._note_retry(loop.time() + wait_s)
            await asyncio.sleep(wait_s)
            self._note_retry(None)

    async def _run_once(self) -> tuple[int, str]:
        """Return its exit code, and the error that it ended with."""
        try:
            async with running(self._command, self._args, stop_within_s=self._stop_within_s) as child:
                return await child.wait(), await child.last_error()
        except (OSError, RuntimeError) as error:
            _log.error("worker %s cannot be started: %s", self._worker_id, error)
            return 1, f"it cannot be started: {error}"

    def state(self) -> WorkerProcess:
        """The worker's process as it is reported to the router."""
        retry_at_s, restarts = self._retry_at_s, self.restarts
        now = asyncio.get_running_loop().time()
        return WorkerProcess(
            worker_id=self._worker_id,
            role=Role(self._command.removesuffix("-worker")),
            retry_in_s=None if retry_at_s is None else max(0.0, retry_at_s - now),
            num_restarts=restarts.num_ends - (retry_at_s is not None),
            end=restarts.end,
            reason=restarts.reason[:MAX_REASON_CHARACTERS],
        )

    def _note_retry(self, at_s: float | None) -> None:
        self._retry_at_s = at_s
        self._on_change()


class WorkerReports:
    """Reports the workers' processes to the router: at first, then after each change."""

    def __init__(self) -> None:
        self._has_changed = asyncio.Event()

    def notify(self) -> None:
        """Report again: a process has changed."""
        self._has_changed.set()

    async def write(self, workers: Sequence[SupervisedWorker], file_descriptor: int) -> None:
        """Write the states to a pipe after each change, until cancelled or until the reader closes it."""
        try:
            async with writing(file_descriptor) as writer:
                while True:
                    self._has_changed.clear()
                    for worker in workers:
                        writer.write(_encoder.encode(worker.state()) + b"\n")
                        await writer.drain()
                    await self._has_changed.wait()
        except ConnectionError:
            return
