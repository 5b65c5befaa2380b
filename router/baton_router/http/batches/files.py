"""The routes of `/v1/files`: upload, list, show, download and delete files of a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any, Final

from starlette.responses import StreamingResponse

from baton_core.errors import InvalidRequestError
from baton_router.batches.batches import Batches
from baton_router.batches.file_store import PREFIX, FileObject, Upload
from baton_router.batches.threads import opened
from baton_router.http.batches.schemas import DeletedFile, FileList, FilesQuery, UploadRequest
from baton_router.http.calls import Call
from baton_router.http.errors import HttpError
from baton_router.http.kept import check_limit, page_of, start_after_sorted
from baton_router.http.multipart import MultipartReader, Part
from baton_router.http.route import Routes, Tag

ROUTES: Final = Routes(tag=Tag.FILES)
_FILE: Final = "/v1/files/{file_id}"

MAX_LISTED: Final = 10_000
MIN_AGE_S: Final = 3600
_MAX_FIELD_BYTES: Final = 1024
_MAX_NAME_CHARACTERS: Final = 255
_PIECE_BYTES: Final = 2**18
_FIELDS: Final = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")


@ROUTES.route(
    "/v1/files",
    "createFile",
    "Upload the requests of a batch",
    method="POST",
    multipart=UploadRequest,
    errors=(507,),
)
async def create_file(call: Call[None]) -> FileObject:
    """Keep a file that comes as a form.

    Raises:
        InvalidRequestError: a field is wrong, or a bound is reached; the message names it.
        HttpError: 408, the form takes too long; 415, it is none; 507, the disk is full.
    """
    files = (await refreshed_batches(call)).files
    content_type = call.request.headers.get("content-type", "")
    try:
        reader = MultipartReader(content_type)
    except InvalidRequestError as error:
        await call.drop_pieces()
        raise HttpError(415, "unsupported_media_type", str(error)) from None
    with call.state.service.open_call():
        try:
            with on_disk("file", param="file"):
                async with files.begin(call.tenant) as upload:
                    return await _Form(call, upload).read(reader)
        except InvalidRequestError:
            await call.drop_pieces()
            raise


class _Form:
    """Reads the fields of one upload, and writes its file as it comes."""

    def __init__(self, call: Call[None], upload: Upload) -> None:
        self._call = call
        self._upload = upload
        self._texts: dict[str, bytearray] = {}
        self._filename: str | None = None

    async def read(self, reader: MultipartReader) -> FileObject:
        """Return the file, once it is whole and its fields are right."""
        part = Part("", None)
        async for piece in self._call.pieces():
            for event in reader.feed(piece):
                if isinstance(event, Part):
                    part = event
                    self._begin(part)
                elif part.name == "file":
                    await self._upload.write(event)
                elif part.name in self._texts:
                    self._texts[part.name] += event
                    if len(self._texts[part.name]) > _MAX_FIELD_BYTES:
                        raise InvalidRequestError(part.name, "too long", f"at most {_MAX_FIELD_BYTES} bytes")
        reader.close()
        if self._filename is None:
            raise InvalidRequestError("file", "missing", "a part with a filename")
        if (purpose := self._text("purpose")) != "batch":
            raise InvalidRequestError("purpose", purpose, "batch")
        return await self._upload.finish(self._filename, "batch", self._age_s())

    def _begin(self, part: Part) -> None:
        if part.name == "file":
            if self._filename is not None:
                raise InvalidRequestError("file", "there twice", "one file")
            if part.filename is None:
                raise InvalidRequestError("file", "a field without a filename", "a part with a filename")
            self._filename = part.filename[:_MAX_NAME_CHARACTERS]
        elif part.name in _FIELDS:
            self._texts[part.name] = bytearray()
        elif self._call.state.settings.strict_fields:
            raise InvalidRequestError(part.name[:80] or "''", "unknown", ", ".join(_FIELDS))

    def _text(self, name: str) -> str | None:
        text = self._texts.get(name)
        return None if text is None else text.decode(errors="replace")

    def _age_s(self) -> float | None:
        anchor, seconds = self._text("expires_after[anchor]"), self._text("expires_after[seconds]")
        if anchor not in (None, "created_at"):
            raise InvalidRequestError("expires_after[anchor]", anchor, "created_at")
        if seconds is None:
            return None
        value: int | str = int(seconds) if seconds.isascii() and seconds.isdecimal() else seconds
        return checked_age(self._call, "expires_after[seconds]", value)


@ROUTES.route("/v1/files", "listFiles", "The files of this key", errors=(400,))
async def list_files(call: Call[None], query: FilesQuery) -> FileList:
    """Raises InvalidRequestError: a parameter is out of range."""
    files = (await refreshed_batches(call)).files.files_of(call.tenant)
    files = [file for file in files if not query.purpose or file.purpose == query.purpose]
    is_reversed = query.order == "desc"
    if is_reversed:
        files.reverse()
    check_limit(query.limit, MAX_LISTED)
    ids = [file.id for file in files]
    start = start_after_sorted(ids, query.after, PREFIX, is_reversed=is_reversed)
    return FileList(**page_of(files, ids, start, query.limit))


@ROUTES.route(_FILE, "retrieveFile", "A file", errors=(400, 404))
async def show_file(call: Call[None]) -> FileObject:
    """Raises HttpError: 404."""
    return await find_file(call, "file_id", call.request.path_params["file_id"])


@ROUTES.route(
    f"{_FILE}/content",
    "downloadFile",
    "The content of a file",
    media_type="application/octet-stream",
    errors=(400, 404),
)
async def show_content(call: Call[None]) -> None:
    """Raises HttpError: 404."""
    file = await find_file(call, "file_id", call.request.path_params["file_id"])
    path = batches_of(call).files.path(file.id)
    try:
        content = await opened(lambda: path.open("rb"), BufferedReader.close)
    except FileNotFoundError:
        raise not_found("file_id", file.id, "file") from None

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(content.read, _PIECE_BYTES):
            yield piece

    headers = {"content-length": str(file.bytes)}
    with content:
        await call.respond(
            StreamingResponse(pieces(), headers=headers, media_type="application/octet-stream")
        )


@ROUTES.route(_FILE, "deleteFile", "Delete a file", method="DELETE", errors=(400, 404))
async def delete_file(call: Call[None]) -> DeletedFile:
    """Raises HttpError: 404; InvalidRequestError: a batch reads it."""
    files = batches_of(call).files
    file = await find_file(call, "file_id", call.request.path_params["file_id"])
    if files.is_read(file.id):
        allowed = "the id of a file that no batch reads: cancel it, or wait until it is over"
        raise InvalidRequestError("file_id", file.id, allowed)
    await files.delete(file.id)
    return DeletedFile(id=file.id)


def batches_of(call: Call[Any]) -> Batches:
    """Return the files and batches of the router."""
    batches = call.state.batches
    assert batches is not None, "their routes are there only with them"
    return batches


async def refreshed_batches(call: Call[Any]) -> Batches:
    """Return the files and batches, with what other routers have changed.

    Raises:
        RequestError: UNAVAILABLE, their folder cannot be read.
    """
    batches = batches_of(call)
    await batches.refresh()
    return batches


async def find_file(call: Call[Any], field: str, file_id: str) -> FileObject:
    """Return a file of the call's key.

    Raises:
        HttpError: 404.
    """
    file = (await refreshed_batches(call)).files.find(call.tenant, file_id)
    if file is None:
        raise not_found(field, file_id, "file")
    return file


@contextmanager
def on_disk(what: str, *, param: str | None = None) -> Iterator[None]:
    """Write something to the router's folder.

    Raises:
        HttpError: 507, the disk refuses.
    """
    try:
        yield
    except OSError as error:
        text = f"{what} cannot be kept: {error.strerror}; allowed: where the router's disk has room"
        raise HttpError(507, "insufficient_storage", text, param=param) from None


def not_found(field: str, name: str, kind: str) -> HttpError:
    """Return the refusal of what is not kept; 404."""
    text = f"{field} is {name[:80]!r}; allowed: the id of a {kind} that is kept here, made with the same key"
    return HttpError(404, "not_found", text, param=field)


def checked_age(call: Call[Any], field: str, seconds: int | str) -> float:
    """Return an age of files in seconds.

    Raises:
        InvalidRequestError: it is out of range.
    """
    most = batches_of(call).limits.max_age_s
    if not isinstance(seconds, int) or not MIN_AGE_S <= seconds <= most:
        allowed = f"{MIN_AGE_S} to {int(most)} (--max-file-age)"
        if most < MIN_AGE_S:
            allowed = f"none, as --max-file-age is {most:g}, below {MIN_AGE_S}"
        raise InvalidRequestError(field, seconds, allowed)
    return float(seconds)
