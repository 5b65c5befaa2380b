"""The files of `/v1/files`: bounded in size, number, bytes and age, apart by tenant, on disk by their ids."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_router.batches.batch_limits import BatchLimits
from baton_router.batches.record_folder import TEMPORARY, RecordFolder, new_id

PREFIX: Final = "file-"


class FileObject(msgspec.Struct, kw_only=True):
    """A file; times are in seconds since 1970."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int
    """The time from which it is forgotten, unless a batch reads it."""
    filename: str
    """As its owner names it."""
    purpose: str
    """`batch`, or `batch_output`."""
    status: str = "processed"


class _StoredFile(msgspec.Struct, kw_only=True):
    tenant: str
    file: FileObject


class FileStore:
    """The files of one router, on its loop; what blocks runs in threads.

    Files that are too old go at the next call. The bytes of a tenant are those of its files, of what it
    uploads now, and what `reserve` adds.
    """

    def __init__(self, folder: RecordFolder, limits: BatchLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._files: dict[str, _StoredFile] = {}
        self._num_bytes: Counter[str] = Counter()
        self._num_files: Counter[str] = Counter()
        self._readers: Counter[str] = Counter()
        for stored in sorted(folder.read(PREFIX, _StoredFile), key=lambda one: one.file.created_at):
            if self.path(stored.file.id).is_file():
                self._note(stored)
        for path in folder.path.glob(f"{PREFIX}*"):
            if path.stem not in self._files:
                path.unlink()

    def path(self, file_id: str) -> Path:
        """Return the path of a file's content."""
        return self._folder.path / file_id

    def find(self, tenant: str, file_id: str) -> FileObject | None:
        """Return a tenant's file; None if it has none of this id."""
        self._forget_old()
        stored = self._files.get(file_id)
        return stored.file if stored is not None and stored.tenant == tenant else None

    def files_of(self, tenant: str) -> list[FileObject]:
        """Return a tenant's files, the oldest first."""
        self._forget_old()
        return [stored.file for stored in self._files.values() if stored.tenant == tenant]

    def begin(self, tenant: str) -> Upload:
        """Return a new file to write.

        Raises:
            InvalidRequestError: the tenant has too many.
        """
        self._forget_old()
        if (number := self._num_files[tenant]) >= self._limits.max_files:
            allowed = f"at most {self._limits.max_files} of one key (--max-files): delete some"
            raise InvalidRequestError("file", f"one more beside {number} files", allowed)
        return Upload(self, self._limits, tenant)

    def read_by(self, file_id: str, num_readers: int) -> None:
        """Note that so many more batches read a file, which then stays, or fewer."""
        self._readers[file_id] += num_readers

    def is_read(self, file_id: str) -> bool:
        """Return whether a batch that is not over reads the file."""
        return self._readers[file_id] > 0

    def reserve(self, tenant: str, num_bytes: int) -> None:
        """Count bytes as a tenant's, or with a negative number no more.

        Raises:
            InvalidConfigError: they are more than it may have; they are not counted.
        """
        limit = self._limits.max_files_bytes
        if num_bytes > 0 and self._num_bytes[tenant] + num_bytes > limit:
            number = self._num_bytes[tenant] + num_bytes
            raise InvalidConfigError(
                f"--max-files-bytes is {limit}, and the files of this key would be {number} bytes; "
                "allowed: fewer files"
            )
        self._num_bytes[tenant] += num_bytes

    async def add(self, tenant: str, file: FileObject) -> None:
        """Keep a file whose content is in its place; it counts, and takes the place of one of its id.

        Raises:
            OSError: its record cannot be written.
        """
        stored = _StoredFile(tenant=tenant, file=file)
        await asyncio.to_thread(self._folder.write, file.id, stored)
        self._drop(file.id)
        self._note(stored)

    def delete(self, file_id: str) -> None:
        """Forget a file."""
        self._drop(file_id)
        self._folder.remove(file_id)
        self.path(file_id).unlink(missing_ok=True)

    def _note(self, stored: _StoredFile) -> None:
        self._files[stored.file.id] = stored
        self._num_bytes[stored.tenant] += stored.file.bytes
        self._num_files[stored.tenant] += 1

    def _drop(self, file_id: str) -> None:
        if (stored := self._files.pop(file_id, None)) is not None:
            self._num_bytes[stored.tenant] -= stored.file.bytes
            self._num_files[stored.tenant] -= 1

    def _forget_old(self) -> None:
        now_s = time.time()
        old = [one.file.id for one in self._files.values() if one.file.expires_at <= now_s]
        for file_id in old:
            if not self.is_read(file_id):
                self.delete(file_id)


class Upload:
    """A file that comes piece by piece; leaving the block without `finish` removes it."""

    def __init__(self, store: FileStore, limits: BatchLimits, tenant: str) -> None:
        self._store = store
        self._limits = limits
        self._tenant = tenant
        self._id = new_id(PREFIX)
        self._num_bytes = 0
        self._path = store.path(self._id).with_suffix(TEMPORARY)
        self._file: Any = None

    async def __aenter__(self) -> Self:
        self._store._num_files[self._tenant] += 1
        self._file = await asyncio.to_thread(self._path.open, "wb")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._store._num_files[self._tenant] -= 1
        self._store.reserve(self._tenant, -self._num_bytes)
        if self._file is not None:
            await asyncio.to_thread(self._file.close)
        self._path.unlink(missing_ok=True)

    async def write(self, piece: bytes) -> None:
        """Append a piece.

        Raises:
            InvalidRequestError: the file, or all of its tenant, would be too large.
        """
        if (most := self._limits.max_file_bytes) < self._num_bytes + len(piece):
            raise InvalidRequestError("file", "too large", f"at most {most} bytes (--max-file-bytes)")
        try:
            self._store.reserve(self._tenant, len(piece))
        except InvalidConfigError as error:
            raise InvalidRequestError("file", "beside others", f"a smaller one: {error}") from None
        self._num_bytes += len(piece)
        await asyncio.to_thread(self._file.write, piece)

    async def finish(self, filename: str, purpose: str, age_s: float | None) -> FileObject:
        """Keep the file, by default for as long as the store keeps files.

        Raises:
            OSError: it cannot be written.
        """
        await asyncio.to_thread(self._settle)
        now_s = time.time()
        file = FileObject(
            id=self._id,
            bytes=self._num_bytes,
            created_at=int(now_s),
            expires_at=int(now_s + (age_s or self._limits.max_age_s)),
            filename=filename,
            purpose=purpose,
        )
        await self._store.add(self._tenant, file)
        return file

    def _settle(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.replace(self._store.path(self._id))
