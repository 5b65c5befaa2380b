"""The right to run a batch: one router at a time has it, and loses it with its process."""

from __future__ import annotations

import fcntl
from pathlib import Path

from baton_router.batches.record_folder import as_private


class Lease:
    """A locked file. The system unlocks it when the process ends, however that happens. Its methods block."""

    def __init__(self, path: Path) -> None:
        """Take the lease.

        Raises:
            BlockingIOError: another one has it.
            OSError: the file cannot be made or locked.
        """
        self._path = path
        self._file = open(path, "ab", opener=as_private)  # noqa: SIM115 (closed by `end`)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise

    def end(self, *, for_good: bool) -> None:
        """Let others have it. `for_good` removes the file, where nobody has to have it again."""
        if for_good:
            self._path.unlink(missing_ok=True)
        self._file.close()
