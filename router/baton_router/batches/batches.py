"""The batches of `/v1/batches`: each is one task that checks its lines, sends them and writes its output.

The record of a batch and its results so far are on disk, so a router that is started again goes on. One batch
of a tenant runs at a time; the requests of all together are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec

from baton_core.errors import BatonError, InvalidRequestError
from baton_router.batches.batch_limits import BatchLimits
from baton_router.batches.batch_run import BatchRun
from baton_router.batches.file_store import PREFIX, FileObject, FileStore
from baton_router.batches.outputs import write_outputs
from baton_router.batches.partial_results import PartialResults, read_lines
from baton_router.batches.record_folder import RecordFolder, new_id
from baton_router.core.batches.batch import (
    WINDOW_S,
    Batch,
    BatchErrors,
    BatchInput,
    BatchStatus,
)
from baton_router.core.batches.batch_lines import InputChecks, LineError
from baton_router.core.batches.batch_results import BatchError

AskAs = Callable[[str, str, bytes, str], Awaitable[tuple[int, bytes]]]
"""Sends a body, for a tenant, to a route under a request id; returns the status and body of the answer."""
_NAME: Final = "batch_"
_PARTIAL: Final = ".partial"
_FLAG: Final = "--files-directory"
_LACKING: Final = {
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


class _StoredBatch(msgspec.Struct, kw_only=True):
    tenant: str
    batch: Batch
    output_age_s: float | None = None


class Batches:
    """The files and batches of one router. Make it before its loop runs, start and stop it on the loop.

    Raises:
        InvalidConfigError: the folder cannot be used.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.defaults: Mapping[str, Mapping[str, Any]] = {}
        """Fields that lines have which do not name them, by the routes that batches may have."""
        self._folder = RecordFolder(limits.folder)
        self.files = FileStore(self._folder, limits)
        self._batches = {one.batch.id: one for one in self._folder.read(_NAME, _StoredBatch)}
        for path in self._folder.path.glob(f"*{_PARTIAL}"):
            if path.stem not in self._batches or self._batches[path.stem].batch.is_over:
                path.unlink()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._saving = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        """Tasks of batches that may still be cancelled."""

    def start(self, ask: AskAs, defaults: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on with the batches that are not over."""
        self.defaults = defaults
        self._ask = ask
        self._seats = asyncio.Semaphore(self.limits.max_inflight)
        for stored in self._batches.values():
            if not stored.batch.is_over:
                self.files.read_by(stored.batch.input_file_id, 1)
                self._launch(stored)

    async def stop(self) -> None:
        """End all tasks; the batches go on at the next start."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._folder.close()

    def find(self, tenant: str, batch_id: str) -> Batch | None:
        """Return a tenant's batch; None if it has none of this id."""
        stored = self._batches.get(batch_id)
        return stored.batch if stored is not None and stored.tenant == tenant else None

    def batches_of(self, tenant: str) -> list[Batch]:
        """Return a tenant's batches, the oldest first."""
        return [stored.batch for stored in self._batches.values() if stored.tenant == tenant]

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
        self._make_room(tenant)
        now_s = int(time.time())
        batch = Batch(
            id=new_id(_NAME),
            endpoint=endpoint,
            input_file_id=file.id,
            created_at=now_s,
            expires_at=now_s + WINDOW_S,
            metadata=metadata,
        )
        stored = _StoredBatch(tenant=tenant, batch=batch, output_age_s=output_age_s)
        self._batches[batch.id] = stored
        self.files.read_by(file.id, 1)
        try:
            await self._save(stored)
        except OSError:
            del self._batches[batch.id]
            self.files.read_by(file.id, -1)
            raise
        self._launch(stored)
        await asyncio.sleep(0)  # a task that has not begun would not see that it is cancelled
        return batch

    async def cancel(self, batch: Batch) -> None:
        """End a batch; one that is cancelled stays as it is.

        Raises:
            InvalidRequestError: it is over, or about to be.
        """
        if batch.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            return
        if batch.id not in self._running or not batch.may(BatchInput.CANCEL):
            allowed = f"the id of a batch that is validating or in_progress, and it is {batch.status}"
            raise InvalidRequestError("batch_id", batch.id, allowed)
        batch.advance(BatchInput.CANCEL, time.time())
        self._running.pop(batch.id).cancel()
        await self._save(self._batches[batch.id])

    def _make_room(self, tenant: str) -> None:
        """Forget a tenant's batches that are over: old ones, and the oldest where there are too many."""
        youngest_s = time.time() - self.limits.max_age_s
        own = [stored.batch for stored in self._batches.values() if stored.tenant == tenant]
        num_kept = len(own)
        for batch in own:
            if batch.is_over and (num_kept >= self.limits.max_batches or batch.created_at < youngest_s):
                del self._batches[batch.id]
                self._folder.remove(batch.id)
                num_kept -= 1
        if num_kept >= self.limits.max_batches:
            beside = f"beside {num_kept} batches that are not over"
            allowed = f"at most {self.limits.max_batches} of one key (--max-batches): wait, or cancel one"
            raise InvalidRequestError("input_file_id", beside, allowed)

    def _launch(self, stored: _StoredBatch) -> None:
        task = self._running[stored.batch.id] = asyncio.create_task(self._run(stored))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, stored: _StoredBatch) -> None:
        batch = stored.batch
        event = await self._run_to_end(stored)
        self._running.pop(batch.id, None)
        try:
            if batch.in_progress_at is not None:
                await self._write_outputs(stored, event)
        except OSError as error:
            event = _failed(batch, error)
        batch.advance(event, time.time())
        self.files.read_by(batch.input_file_id, -1)
        counts = batch.request_counts
        _log.info(
            "batch %s is %s: %d lines, %d answered, %d with an error",
            *(batch.id, batch.status, counts.total, counts.completed, counts.failed),
        )
        try:
            await self._save(stored)
        except OSError as error:
            _log.error("batch %s is written again after a restart: %s", batch.id, error)
        else:
            self._partial(batch).unlink(missing_ok=True)

    async def _run_to_end(self, stored: _StoredBatch) -> BatchInput:
        """Check and send the lines; returns the input that ends the batch once its output is written."""
        batch = stored.batch
        if not batch.may(BatchInput.EXPIRE):  # its output was being written as the router ended
            return BatchInput.WRITE
        try:
            async with asyncio.timeout(batch.expires_at - time.time()):
                async with self._turns[stored.tenant]:
                    if batch.status is BatchStatus.VALIDATING and not await self._check_lines(stored):
                        return BatchInput.FAIL
                    if batch.status is BatchStatus.IN_PROGRESS:
                        await self._send_lines(stored)
        except TimeoutError:
            return BatchInput.EXPIRE if batch.may(BatchInput.EXPIRE) else BatchInput.WRITE
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if batch.status is not BatchStatus.CANCELLING or task is None:
                raise
            task.uncancel()
        except Exception as error:  # whatever it is, the batch has an end
            return _failed(batch, error)
        return BatchInput.WRITE

    async def _check_lines(self, stored: _StoredBatch) -> bool:
        """Return whether the lines may be sent; else the batch has the errors."""
        batch = stored.batch
        path = self.files.path(batch.input_file_id)
        checks = await asyncio.to_thread(_check, path, InputChecks(batch.endpoint, self.limits.max_lines))
        batch.request_counts.total = checks.num_lines
        if checks.errors:
            batch.errors = BatchErrors(data=checks.errors)
            return False
        batch.advance(BatchInput.VALIDATE, time.time())
        await self._save(stored)
        return True

    async def _send_lines(self, stored: _StoredBatch) -> None:
        batch, tenant = stored.batch, stored.tenant
        results = await asyncio.to_thread(PartialResults, self._partial(batch), _FLAG)
        num_reserved = 0

        def on_result() -> None:
            nonlocal num_reserved
            batch.request_counts.completed = len(results.done) - results.num_errors
            batch.request_counts.failed = results.num_errors
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
            await asyncio.to_thread(results.__exit__)
        await self._save(stored)

    async def _write_outputs(self, stored: _StoredBatch, event: BatchInput) -> None:
        """Write the output of a batch, by names that are its own: a second time makes the same files."""
        batch = stored.batch
        names = [f"{PREFIX}{_digest(batch.id, kind)}" for kind in ("output", "error")]
        paths = [self.files.path(name) for name in names]
        lacking = None if batch.status is BatchStatus.FINALIZING else _LACKING[event]
        source = self.files.path(batch.input_file_id)
        sizes = await asyncio.to_thread(write_outputs, self._partial(batch), source, *paths, lacking=lacking)
        now_s = time.time()
        for name, size, kind in zip(names, sizes, ("output", "error"), strict=True):
            if not size:
                continue
            file = FileObject(
                id=name,
                bytes=size,
                created_at=int(now_s),
                expires_at=int(now_s + (stored.output_age_s or self.limits.max_age_s)),
                filename=f"{batch.id}_{kind}.jsonl",
                purpose="batch_output",
            )
            await self.files.add(stored.tenant, file)
            setattr(batch, f"{kind}_file_id", name)

    async def _save(self, stored: _StoredBatch) -> None:
        """Raises OSError: the record cannot be written."""
        async with self._saving:
            await asyncio.to_thread(self._folder.write, stored.batch.id, stored)

    def _partial(self, batch: Batch) -> Path:
        return self._folder.path / f"{batch.id}{_PARTIAL}"


def _check(path: Path, checks: InputChecks) -> InputChecks:
    for number, line in enumerate(read_lines(path), 1):
        checks.add(number, line)
        if checks.is_over:
            break
    checks.end()
    return checks


def _failed(batch: Batch, error: Exception) -> BatchInput:
    is_known = isinstance(error, (BatonError, OSError))
    _log.error("batch %s cannot go on: %s", batch.id, error, exc_info=None if is_known else error)
    text = str(error) if is_known else "internal error; the router's log has the cause"
    batch.errors = BatchErrors(data=[LineError(code="cannot_go_on", message=text)])
    return BatchInput.FAIL


def _digest(*texts: str) -> str:
    return blake2b("/".join(texts).encode(), digest_size=12).hexdigest()
