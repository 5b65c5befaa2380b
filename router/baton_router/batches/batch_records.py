"""The batches of a folder: a record of each, and a few files of its run beside one that is not over."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from baton_router.batches.record_folder import RecordFolder, RecordIndex, is_stale
from baton_router.core.batches.batch import Batch

PREFIX: Final = "batch_"


class RunFile(StrEnum):
    """The suffix of a file of a batch that is not over."""

    PARTIAL = ".partial"
    """Its results so far."""
    LEASE = ".lease"
    """Locked by the router that runs it."""
    CANCEL = ".cancel"
    """Its owner wants it to end."""


class StoredBatch(msgspec.Struct, kw_only=True):
    tenant: str
    batch: Batch
    output_age_s: float | None = None


class BatchRecords(RecordIndex[StoredBatch]):
    """The batches of a folder, as they were when it was last read."""

    def __init__(self, folder: RecordFolder) -> None:
        super().__init__(folder, PREFIX, StoredBatch)
        self._path = folder.path
        self._remove_left(folder)

    def path(self, batch_id: str, file: RunFile) -> Path:
        """Return the path of a file of a batch."""
        return self._path / f"{batch_id}{file}"

    def read_cancels(self) -> list[tuple[str, float]]:
        """Return the batches whose owners want them to end, and since when; blocks."""
        found = []
        for path in self._path.glob(f"{PREFIX}*{RunFile.CANCEL}"):
            with suppress(FileNotFoundError):
                found.append((path.stem, path.stat().st_mtime))
        return found

    def _remove_left(self, folder: RecordFolder) -> None:
        """Remove files of batches that are over or have no record, whose routers are gone."""
        for file in RunFile:
            for path in self._path.glob(f"{PREFIX}*{file}"):
                if (stored := self.get(path.stem)) is not None:
                    is_left = stored.batch.is_over
                else:
                    is_left = folder.is_without(path.stem) and is_stale(path)
                if is_left:
                    path.unlink(missing_ok=True)
