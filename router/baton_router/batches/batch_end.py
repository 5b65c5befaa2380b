"""The end of a batch: its output is written, then its record, again and again until the disk takes both."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from baton_router.batches.batch_records import BatchRecords, RunFile, StoredBatch
from baton_router.batches.file_store import PREFIX, FileObject, FileStore
from baton_router.batches.outputs import write_outputs
from baton_router.batches.record_folder import time_of
from baton_router.batches.threads import in_thread
from baton_router.core.batches.batch import Batch, BatchErrors, BatchInput, BatchStatus, RequestCounts
from baton_router.core.batches.batch_lines import LineError
from baton_router.core.batches.batch_results import BatchError

_PAUSE_S: Final = 1.0
"""Time until the second try; each later pause is twice as long, up to the longest."""
_LONGEST_PAUSE_S: Final = 60.0
_KINDS: Final = ("output", "error")
_LACKING: Final[Mapping[BatchInput, BatchError]] = {
    BatchInput.EXPIRE: BatchError(
        code="batch_expired",
        message="This request could not be executed before the completion window expired.",
    ),
    BatchInput.WRITE: BatchError(
        code="batch_cancelled", message="The batch was cancelled before this request."
    ),
    BatchInput.FAIL: BatchError(code="batch_failed", message="The batch failed before this request."),
}
"""Errors of the lines without a result, by what ended their batch."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchEnds:
    """Ends the batches whose leases one router has; on its loop, what blocks runs in threads.

    Args:
        max_age_s: age of the output files of batches that say nothing about it.
    """

    records: BatchRecords
    files: FileStore
    max_age_s: float

    async def end(self, stored: StoredBatch, event: BatchInput, errors: Sequence[LineError]) -> None:
        """Write the output of a batch, and then take the input that ends it, with the reasons of a failure.

        While the disk refuses, the batch stays as it is, with its results so far. It shows its end once the
        disk has that.
        """
        pause_s = _PAUSE_S
        while True:
            try:
                await self._end(stored, event, errors)
            except OSError as error:
                _log.warning("batch %s cannot be written now, but is tried again: %s", stored.batch.id, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                break
        for file in (RunFile.PARTIAL, RunFile.CANCEL):
            with suppress(OSError):  # they go when a router starts
                self.records.path(stored.batch.id, file).unlink(missing_ok=True)

    async def _end(self, stored: StoredBatch, event: BatchInput, errors: Sequence[LineError]) -> None:
        batch = copy(stored.batch)
        batch.errors = BatchErrors(data=list(errors)) if errors else None
        if batch.in_progress_at is not None or event is not BatchInput.FAIL:
            await self._write_outputs(stored, event, batch)
        batch.advance(event, time.time())
        written = msgspec.structs.replace(stored, batch=batch)
        await self.records.add(batch.id, written, shown=stored)
        for field in batch.__struct_fields__:
            setattr(stored.batch, field, getattr(batch, field))

    async def _write_outputs(self, stored: StoredBatch, event: BatchInput, batch: Batch) -> None:
        """Write the output of a batch, by names that are its own: a second time makes the same files.

        The batch gets their names and the numbers of their lines.
        """
        digests = [blake2b(f"{batch.id}/{kind}".encode(), digest_size=8) for kind in _KINDS]
        names = [f"{PREFIX}{time_of(batch.id)}{digest.hexdigest()}" for digest in digests]
        written = await in_thread(
            write_outputs,
            self.records.path(batch.id, RunFile.PARTIAL),
            self.files.path(batch.input_file_id),
            *map(self.files.path, names),
            lacking=None if batch.status is BatchStatus.FINALIZING else _LACKING[event],
        )
        completed, failed = (each.num_lines for each in written)
        total = max(batch.request_counts.total, completed + failed)
        batch.request_counts = RequestCounts(total=total, completed=completed, failed=failed)
        now_s = time.time()
        for name, (num_bytes, _), kind in zip(names, written, _KINDS, strict=True):
            if not num_bytes:
                continue
            file = FileObject(
                id=name,
                bytes=num_bytes,
                created_at=int(now_s),
                expires_at=int(now_s + (stored.output_age_s or self.max_age_s)),
                filename=f"{batch.id}_{kind}.jsonl",
                purpose="batch_output",
            )
            await self.files.add(stored.tenant, file)
            setattr(batch, f"{kind}_file_id", name)
