"""Tasks of which each is about one worker, and ends when that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class WorkerTasks:
    """Runs at most one task for each worker, on the running loop."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Tasks by their workers' names; some may have ended."""

    def begin(self, worker_id: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Begin a worker's task, unless it runs."""
        running = self._tasks.get(worker_id)
        if running is None or running.done():
            self._tasks[worker_id] = asyncio.get_running_loop().create_task(work())

    def on_left(self, worker_id: str) -> None:
        """Cancel the task of a worker whose session is over."""
        if (task := self._tasks.pop(worker_id, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks.values():
            task.cancel()
