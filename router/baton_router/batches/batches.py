"""The batches of `/v1/batches`: each is one task that checks its lines, sends them and writes its output.

The record of a batch and its results so far are on disk, where several routers may share them. The router
that has the lease of a batch runs it, and it alone writes its record; another router asks for a cancellation
by a file. Each router looks for batches that are not over and have no lease, and goes on with them. A router
runs one batch of a tenant at a time; the requests of all its batches together are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_router.batches.batch_end import BatchEnds
from baton_router.batches.batch_limits import BatchLimits
from baton_router.batches.batch_records import PREFIX as BATCH_PREFIX
from baton_router.batches.batch_records import BatchRecords, RunFile, StoredBatch
from baton_router.batches.batch_run import BatchRun
from baton_router.batches.file_store import FileObject, FileStore
from baton_router.batches.lease import Lease
from baton_router.batches.partial_results import PartialResults, numbered_lines, read_lines
from baton_router.batches.record_folder import RecordFolder, as_private, new_id
from baton_router.batches.threads import in_thread, opened
from baton_router.core.batches.batch import (
    WINDOW_S,
    Batch,
    BatchInput,
    BatchStatus,
)
from baton_router.core.batches.batch_lines import InputChecks, LineError

AskAs = Callable[[str, str, bytes, str], Awaitable[tuple[int, bytes]]]
"""Sends a body, for a tenant, to a route under a request id; returns the status and body of the answer."""
_LOOK_EVERY_S: Final = 1.0
"""Time between two looks at what other routers have left."""
_PLACE: Final = "--files-directory has the results of the batch"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    """A batch that this router runs."""

    lease: Lease
    task: asyncio.Task[None]
    num_saved: int
    """Lines with a result that its record has."""
    may_cancel: bool = True


class Batches:
    """The files and batches of a folder, at one of its routers, as the last `refresh` has read them.

    Make it before its loop runs, start and stop it on the loop.

    Raises:
        InvalidConfigError: the folder cannot be used.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.defaults: Mapping[str, Mapping[str, Any]] = {}
        """Fields that lines have which do not name them, by the routes that batches may have."""
        folder = RecordFolder(limits.folder)
        self._records = BatchRecords(folder)
        self.files = FileStore(folder, limits, self._is_read)
        self._ends = BatchEnds(self._records, self.files, limits.max_age_s)
        self._runs: dict[str, _Run] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._watching: asyncio.Task[None] | None = None

    def start(self, ask: AskAs, defaults: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on with the batches that are not over and that no other router runs."""
        self.defaults = defaults
        self._ask = ask
        self._seats = asyncio.Semaphore(self.limits.max_inflight)
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End all tasks; the batches go on at another router, or at the next start."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        tasks = [run.task for run in self._runs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for run in self._runs.values():
            run.lease.end(for_good=False)

    async def refresh(self) -> None:
        """Read what other routers have changed.

        Raises:
            RequestError: UNAVAILABLE, the folder cannot be read.
        """
        try:
            await self._records.refresh()
            await self.files.refresh()
            cancels = await asyncio.to_thread(self._records.read_cancels)
        except OSError as error:
            text = f"--files-directory is {self.limits.folder!r}, which cannot be read now: {error.strerror}"
            raise RequestError(ErrorCode.UNAVAILABLE, text) from None
        for batch_id, time_s in cancels:
            stored = self._records.get(batch_id)
            if stored is None or not stored.batch.may(BatchInput.CANCEL):
                continue
            run = self._runs.get(batch_id)
            if run is None or run.may_cancel:
                stored.batch.advance(BatchInput.CANCEL, time_s)
            if run is not None and run.may_cancel:
                run.may_cancel = False
                run.task.cancel()

    def find(self, tenant: str, batch_id: str) -> Batch | None:
        """Return a tenant's batch; None if it has none of this id."""
        stored = self._records.get(batch_id)
        return stored.batch if stored is not None and stored.tenant == tenant else None

    def batches_of(self, tenant: str) -> list[Batch]:
        """Return a tenant's batches, the oldest first."""
        return [stored.batch for stored in self._records.values() if stored.tenant == tenant]

    async def create(
        self,
        tenant: str,
        file: FileObject,
        endpoint: str,
        metadata: dict[str, str] | None,
        output_age_s: float | None,
    ) -> Batch:
        """Begin a batch over a file.

        Raises:
            InvalidRequestError: the tenant has too many that are not over.
            OSError: its record cannot be written.
        """
        await self._make_room(tenant)
        now_s = int(time.time())
        batch = Batch(
            id=new_id(BATCH_PREFIX),
            endpoint=endpoint,
            input_file_id=file.id,
            created_at=now_s,
            expires_at=now_s + WINDOW_S,
            metadata=metadata,
        )
        stored = StoredBatch(tenant=tenant, batch=batch, output_age_s=output_age_s)
        path = self._records.path(batch.id, RunFile.LEASE)
        lease = await opened(lambda: Lease(path), partial(Lease.end, for_good=True))
        try:
            await self._records.add(batch.id, stored)
        except OSError:
            lease.end(for_good=True)
            raise
        except asyncio.CancelledError:
            lease.end(for_good=False)  # whoever looks next at the record, if it was written, begins
            raise
        await self._launch(stored, lease)
        return batch

    async def cancel(self, batch: Batch) -> Batch:
        """End a batch, here or at the router that runs it; one that is cancelled stays as it is.

        Raises:
            InvalidRequestError: it is over, or about to be.
            RequestError: UNAVAILABLE, the folder cannot be read.
            OSError: it cannot be written.
        """
        if batch.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            return batch
        run = self._runs.get(batch.id)
        if not batch.may(BatchInput.CANCEL) or (run is not None and not run.may_cancel):
            allowed = f"the id of a batch that is validating or in_progress, and it is {batch.status}"
            raise InvalidRequestError("batch_id", batch.id, allowed)
        await asyncio.to_thread(self._records.path(batch.id, RunFile.CANCEL).touch)
        await self.refresh()
        stored = self._records.get(batch.id)
        return batch if stored is None else stored.batch

    async def _make_room(self, tenant: str) -> None:
        """Forget a tenant's oldest batches that are over, where there are too many."""
        own = self.batches_of(tenant)
        num_kept = len(own)
        for batch in own:
            if batch.is_over and num_kept >= self.limits.max_batches:
                await self._records.remove(batch.id)
                num_kept -= 1
        if num_kept >= self.limits.max_batches:
            beside = f"beside {num_kept} batches that are not over"
            allowed = f"at most {self.limits.max_batches} of one key (--max-batches): wait, or cancel one"
            raise InvalidRequestError("input_file_id", beside, allowed)

    def _is_read(self, file_id: str) -> bool:
        live = (one.batch for one in self._records.values() if not one.batch.is_over)
        return any(batch.input_file_id == file_id for batch in live)

    async def _watch(self) -> None:
        """Take over batches without a lease, forget old ones, and write how far those of this router are."""
        while True:
            try:
                await self.refresh()
                await self._forget_old()
                for stored in self._records.values():
                    await self._look_at(stored)
            except (BatonError, OSError) as error:
                _log.warning("batches of other routers are looked at again in a second: %s", error)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _forget_old(self) -> None:
        oldest_s = time.time() - self.limits.max_age_s
        for stored in self._records.values():
            if stored.batch.is_over and stored.batch.created_at < oldest_s:
                await self._records.remove(stored.batch.id)

    async def _look_at(self, stored: StoredBatch) -> None:
        batch = stored.batch
        if (run := self._runs.get(batch.id)) is not None:
            if run.num_saved != (number := _num_done(batch)) and batch.may(BatchInput.EXPIRE):
                run.num_saved = number
                await self._save(stored)
        elif not batch.is_over:
            path = self._records.path(batch.id, RunFile.LEASE)
            try:
                lease = await opened(lambda: Lease(path), partial(Lease.end, for_good=False))
            except BlockingIOError:  # another router runs it
                return
            await self._records.refresh()  # whoever had the lease may have gone on meanwhile
            now = self._records.get(batch.id)
            if now is None or now.batch.is_over:
                lease.end(for_good=True)
            else:
                await self._launch(now, lease)

    async def _launch(self, stored: StoredBatch, lease: Lease) -> None:
        task = asyncio.create_task(self._run(stored))
        self._runs[stored.batch.id] = _Run(lease, task, _num_done(stored.batch))
        await asyncio.sleep(0)  # a task that has not begun would not see that it is cancelled

    async def _run(self, stored: StoredBatch) -> None:
        batch = stored.batch
        event, errors = await self._run_to_end(stored)
        self._runs[batch.id].may_cancel = False
        await self._ends.end(stored, event, errors)
        counts = batch.request_counts
        _log.info(
            "batch %s is %s: %d lines, %d answered, %d with an error",
            *(batch.id, batch.status, counts.total, counts.completed, counts.failed),
        )
        self._runs.pop(batch.id).lease.end(for_good=True)

    async def _run_to_end(self, stored: StoredBatch) -> tuple[BatchInput, list[LineError]]:
        """Check and send the lines.

        Returns the input that ends the batch once its output is written, and the reasons of a failure.
        """
        batch = stored.batch
        if not batch.may(BatchInput.EXPIRE):  # its output was being written as the router ended
            return BatchInput.WRITE, []
        try:
            async with asyncio.timeout(batch.expires_at - time.time()):
                async with self._turns[stored.tenant]:
                    if batch.status is BatchStatus.VALIDATING and (errors := await self._check_lines(stored)):
                        return BatchInput.FAIL, errors
                    if batch.status is BatchStatus.IN_PROGRESS:
                        await self._send_lines(stored)
        except TimeoutError:
            return BatchInput.EXPIRE if batch.may(BatchInput.EXPIRE) else BatchInput.WRITE, []
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if batch.status is not BatchStatus.CANCELLING or task is None:
                raise
            task.uncancel()
        except Exception as error:  # whatever it is, the batch has an end
            return BatchInput.FAIL, [_reason(batch, error)]
        return BatchInput.WRITE, []

    async def _check_lines(self, stored: StoredBatch) -> list[LineError]:
        """Return what is wrong with the lines; if nothing is, they may be sent."""
        batch = stored.batch
        path = self.files.path(batch.input_file_id)
        checks = await asyncio.to_thread(_check, path, InputChecks(batch.endpoint, self.limits.max_lines))
        batch.request_counts.total = checks.num_lines
        if not checks.errors:
            batch.advance(BatchInput.VALIDATE, time.time())
            await self._save(stored)
        return checks.errors

    async def _send_lines(self, stored: StoredBatch) -> None:
        batch, tenant = stored.batch, stored.tenant
        path = self._records.path(batch.id, RunFile.PARTIAL)
        results = await opened(lambda: PartialResults(path, _PLACE, as_private), PartialResults.__exit__)
        num_reserved = 0

        def count() -> None:
            batch.request_counts.completed = len(results.done) - results.num_errors
            batch.request_counts.failed = results.num_errors

        def on_result() -> None:
            nonlocal num_reserved
            count()
            self.files.reserve(tenant, results.num_bytes - num_reserved)
            num_reserved = results.num_bytes

        async def ask(url: str, content: bytes, request_id: str) -> tuple[int, bytes]:
            async with self._seats:
                return await self._ask(tenant, url, content, request_id)

        lines = read_lines(self.files.path(batch.input_file_id))
        run = BatchRun(ask, results, self.defaults, waits_for_room=True)
        try:
            on_result()
            await run.run(lines, self.limits.max_inflight, on_result)
            batch.advance(BatchInput.ANSWER, time.time())
        finally:
            self.files.reserve(tenant, -num_reserved)
            await in_thread(results.__exit__)
            count()
        await self._save(stored)

    async def _save(self, stored: StoredBatch) -> None:
        """Write the record of a batch that is not over; if the disk refuses, a later one tells as much."""
        try:
            await self._records.add(stored.batch.id, stored)
        except OSError as error:
            _log.warning("the record of batch %s cannot be written now: %s", stored.batch.id, error)


def _num_done(batch: Batch) -> int:
    """Return the number of lines that have a result."""
    return batch.request_counts.completed + batch.request_counts.failed


def _check(path: Path, checks: InputChecks) -> InputChecks:
    for number, line in numbered_lines(path):
        checks.add(number, line)
        if checks.is_over:
            break
    checks.end()
    return checks


def _reason(batch: Batch, error: Exception) -> LineError:
    is_known = isinstance(error, (BatonError, OSError))
    _log.error("batch %s cannot go on: %s", batch.id, error, exc_info=None if is_known else error)
    if isinstance(error, FileNotFoundError):
        error = InvalidRequestError(
            "input_file_id", batch.input_file_id, "a file that is not deleted meanwhile"
        )
    text = str(error) if is_known else "internal error; the router's log has the cause"
    if isinstance(error, OSError):
        text = f"{_PLACE}; allowed: on a disk that takes them ({error.strerror})"
    return LineError(code="cannot_go_on", message=text)
