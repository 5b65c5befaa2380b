"""The processes of a fleet's workers, as the launcher that starts them describes them.

A router that is started alone has no launcher, and knows no worker before it registers.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from baton_core.sessions.worker_info import Role

MAX_REASON_CHARACTERS: Final = 500
MAX_NAMED: Final = 8
"""Maximum number of workers named in a text."""


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's process; a launcher sends it to its router, as a line of JSON, whenever it changes."""

    worker_id: str
    role: Role
    retry_in_s: float | None = None
    """Time until its next start; None while it runs."""
    num_restarts: int = 0
    end: str = ""
    """Its last end, for everybody: `was killed by SIGKILL`; empty before its first end."""
    reason: str = ""
    """The error that it ended with, for operators; empty where it said nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentWorker:
    """A worker that has a process, or will have one again, and is not registered."""

    worker_id: str
    role: Role
    end: str
    reason: str
    num_restarts: int
    retry_in_s: float | None
    has_left: bool
    """Its process, which still runs, was registered before: it is frozen or cut off, or about to end."""

    @property
    def state(self) -> str:
        """The state as metrics and the dashboard name it."""
        if self.retry_in_s is not None:
            return "restarting"
        return "lost" if self.has_left else "loading"

    def __str__(self) -> str:
        if self.retry_in_s is not None:
            return f"{self.worker_id} {self.end} and is started again in {math.ceil(self.retry_in_s)} s"
        if self.has_left:
            return f"{self.worker_id} runs, but is registered no longer"
        return f"{self.worker_id} {self.end} and is loading" if self.end else f"{self.worker_id} is loading"


class WorkerProcesses:
    """The latest description of each worker's process."""

    def __init__(self) -> None:
        self._updates: dict[str, tuple[WorkerProcess, float]] = {}
        self._left: set[str] = set()
        """Workers that were registered in the life of their latest process, and left."""

    def update(self, now: float, process: WorkerProcess) -> None:
        """Replace the description of a worker's process."""
        self._updates[process.worker_id] = (process, now)
        self._left.discard(process.worker_id)

    def leave(self, worker_id: str) -> None:
        """Note that a worker was registered and is no longer."""
        if worker_id in self._updates:
            self._left.add(worker_id)

    @property
    def num_restarts(self) -> dict[str, int]:
        """Starts after the first one, by worker."""
        return {name: process.num_restarts for name, (process, _) in sorted(self._updates.items())}

    def absent(self, now: float, registered: Collection[str]) -> list[AbsentWorker]:
        """Return the workers that are not registered, in the order of their names."""
        return [
            AbsentWorker(
                worker_id=name,
                role=process.role,
                end=process.end,
                reason=process.reason,
                num_restarts=process.num_restarts,
                retry_in_s=_remaining(process.retry_in_s, now - updated_s),
                has_left=name in self._left,
            )
            for name, (process, updated_s) in sorted(self._updates.items())
            if name not in registered
        ]

    def explain(self, now: float, registered: Collection[str]) -> str:
        """Return how many workers are registered and what the others do; empty where none is absent."""
        absent = self.absent(now, registered)
        if not absent:
            return ""
        num_all = len(self._updates)
        named = ", ".join(map(str, absent[:MAX_NAMED]))
        return f"{num_all - len(absent)} of {num_all} workers are registered: {named}"


def _remaining(retry_in_s: float | None, passed_s: float) -> float | None:
    return None if retry_in_s is None else max(0.0, retry_in_s - passed_s)
