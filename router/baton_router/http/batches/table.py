"""The routes of files and batches, which a router with a folder for files has."""

from __future__ import annotations

from functools import partial
from typing import Final

from baton_router.batches.file_store import FileObject
from baton_router.core.batches.batch import Batch
from baton_router.http.batches import batches, files, schemas
from baton_router.http.route import Route, Tag

_FILE: Final = "/v1/files/{file_id}"
_BATCH: Final = "/v1/batches/{batch_id}"
_of_files: Final = partial(Route, tag=Tag.FILES)
_of_batches: Final = partial(Route, tag=Tag.BATCHES)
BATCH_ROUTES: Final = (
    _of_files(
        "/v1/files",
        "createFile",
        "Upload the requests of a batch",
        files.create_file,
        method="POST",
        multipart=schemas.UploadRequest,
        reply=FileObject,
        errors=(507,),
    ),
    _of_files(
        "/v1/files",
        "listFiles",
        "The files of this key",
        files.list_files,
        query=schemas.FilesQuery,
        reply=schemas.FileList,
        errors=(400,),
    ),
    _of_files(_FILE, "retrieveFile", "A file", files.show_file, reply=FileObject, errors=(400, 404)),
    _of_files(
        f"{_FILE}/content",
        "downloadFile",
        "The content of a file",
        files.show_content,
        media_type="application/octet-stream",
        errors=(400, 404),
    ),
    _of_files(
        _FILE,
        "deleteFile",
        "Delete a file",
        files.delete_file,
        method="DELETE",
        reply=schemas.DeletedFile,
        errors=(400, 404),
    ),
    _of_batches(
        "/v1/batches",
        "createBatch",
        "Answer the requests of a file, between those of others",
        batches.create_batch,
        method="POST",
        example={
            "input_file_id": "file-0123456789abcdef01234567",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        reply=Batch,
        errors=(404, 507),
    ),
    _of_batches(
        "/v1/batches",
        "listBatches",
        "The batches of this key, the latest first",
        batches.list_batches,
        query=schemas.BatchesQuery,
        reply=schemas.BatchList,
        errors=(400,),
    ),
    _of_batches(_BATCH, "retrieveBatch", "A batch", batches.show_batch, reply=Batch, errors=(400, 404)),
    _of_batches(
        f"{_BATCH}/cancel",
        "cancelBatch",
        "End a batch; what is answered stays",
        batches.cancel_batch,
        method="POST",
        reply=Batch,
        errors=(400, 404, 507),
    ),
)
