"""The files of `/v1/files`: bounded in size, number, bytes and age, apart by tenant, on disk by their ids."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import msgspec

from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_router.batches.batch_limits import BatchLimits
from baton_router.batches.record_folder import (
    TEMPORARY,
    RecordFolder,
    RecordIndex,
    as_private,
    is_stale,
    new_id,
)
from baton_router.batches.threads import in_thread, opened

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
    """The files of a folder, on the loop of one of its routers; what blocks runs in threads.

    `refresh` reads what other routers have added and deleted, and deletes files that are too old. The bytes
    of a tenant are those of its files, of what it uploads here now, and what `reserve` adds.

    Args:
        is_read: says of a file's id whether a batch that is not over reads the file, which then stays.
    """

    def __init__(self, folder: RecordFolder, limits: BatchLimits, is_read: Callable[[str], bool]) -> None:
        self._folder = folder
        self._limits = limits
        self.is_read = is_read
        self._index = RecordIndex(folder, PREFIX, _StoredFile)
        self._kept_bytes: Counter[str] = Counter()
        self._kept_files: Counter[str] = Counter()
        self._more_bytes: Counter[str] = Counter()
        self._more_files: Counter[str] = Counter()
        """Uploads of this router that are not files yet."""
        self._count()
        for path in folder.path.glob(f"{PREFIX}*"):
            if not path.suffix and folder.is_without(path.name) and is_stale(path):
                path.unlink(missing_ok=True)

    def path(self, file_id: str) -> Path:
        """Return the path of a file's content."""
        return self._folder.path / file_id

    async def refresh(self) -> None:
        """Read what has changed.

        Raises:
            OSError: the folder cannot be read.
        """
        await self._index.refresh()
        now_s = time.time()
        old = [one.file.id for one in self._index.values() if one.file.expires_at <= now_s]
        for file_id in old:
            if not self.is_read(file_id):
                await self.delete(file_id)
        self._count()

    def find(self, tenant: str, file_id: str) -> FileObject | None:
        """Return a tenant's file; None if it has none of this id."""
        stored = self._index.get(file_id)
        return stored.file if stored is not None and stored.tenant == tenant else None

    def files_of(self, tenant: str) -> list[FileObject]:
        """Return a tenant's files in the order in which they, or the batches of outputs, were made."""
        return [stored.file for stored in self._index.values() if stored.tenant == tenant]

    def begin(self, tenant: str) -> Upload:
        """Return a new file to write.

        Raises:
            InvalidRequestError: the tenant has too many.
        """
        number = self._kept_files[tenant] + self._more_files[tenant]
        if number >= self._limits.max_files:
            allowed = f"at most {self._limits.max_files} of one key (--max-files): delete some"
            raise InvalidRequestError("file", f"one more beside {number} files", allowed)
        return Upload(self, self._limits, tenant)

    def reserve(self, tenant: str, num_bytes: int) -> None:
        """Count bytes as a tenant's, or with a negative number no more.

        Raises:
            InvalidConfigError: they are more than it may have; they are not counted.
        """
        limit = self._limits.max_files_bytes
        number = self._kept_bytes[tenant] + self._more_bytes[tenant] + num_bytes
        if num_bytes > 0 and number > limit:
            raise InvalidConfigError(
                f"--max-files-bytes is {limit}, and the files of this key would be {number} bytes; "
                "allowed: fewer files"
            )
        self._more_bytes[tenant] += num_bytes

    async def add(self, tenant: str, file: FileObject) -> None:
        """Keep a file whose content is in its place; it counts, and takes the place of one of its id.

        Raises:
            OSError: its record cannot be written.
        """
        await self._index.add(file.id, _StoredFile(tenant=tenant, file=file))
        self._count()

    async def delete(self, file_id: str) -> None:
        """Forget a file."""
        await self._index.remove(file_id)
        self.path(file_id).unlink(missing_ok=True)
        self._count()

    def _count(self) -> None:
        self._kept_bytes.clear()
        self._kept_files.clear()
        for stored in self._index.values():
            self._kept_bytes[stored.tenant] += stored.file.bytes
            self._kept_files[stored.tenant] += 1


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
        self._store._more_files[self._tenant] += 1
        try:
            self._file = await opened(self._open, self._remove)
        except BaseException:
            self._store._more_files[self._tenant] -= 1
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._store._more_files[self._tenant] -= 1
        self._store.reserve(self._tenant, -self._num_bytes)
        await in_thread(self._remove, self._file)

    def _open(self) -> BinaryIO:
        return open(self._path, "wb", opener=as_private)

    def _remove(self, file: BinaryIO) -> None:
        try:
            file.close()
        finally:
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
