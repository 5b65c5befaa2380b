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
        method="POST",
        path="/v1/files",
        operation_id="createFile",
        summary="Upload the requests of a batch",
        handler=files.create_file,
        multipart=schemas.UploadRequest,
        reply=FileObject,
        errors=(507,),
    ),
    _of_files(
        method="GET",
        path="/v1/files",
        operation_id="listFiles",
        summary="The files of this key",
        handler=files.list_files,
        query=schemas.FilesQuery,
        reply=schemas.FileList,
        errors=(400,),
    ),
    _of_files(
        method="GET",
        path=_FILE,
        operation_id="retrieveFile",
        summary="A file",
        handler=files.show_file,
        reply=FileObject,
        errors=(400, 404),
    ),
    _of_files(
        method="GET",
        path=f"{_FILE}/content",
        operation_id="downloadFile",
        summary="The content of a file",
        handler=files.show_content,
        media_type="application/octet-stream",
        errors=(400, 404),
    ),
    _of_files(
        method="DELETE",
        path=_FILE,
        operation_id="deleteFile",
        summary="Delete a file",
        handler=files.delete_file,
        reply=schemas.DeletedFile,
        errors=(400, 404),
    ),
    _of_batches(
        method="POST",
        path="/v1/batches",
        operation_id="createBatch",
        summary="Answer the requests of a file, between those of others",
        handler=batches.create_batch,
        bodies=(schemas.CreateBatchRequest,),
        example={
            "input_file_id": "file-0123456789abcdef01234567",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        reply=Batch,
        errors=(404, 507),
    ),
    _of_batches(
        method="GET",
        path="/v1/batches",
        operation_id="listBatches",
        summary="The batches of this key, the latest first",
        handler=batches.list_batches,
        query=schemas.BatchesQuery,
        reply=schemas.BatchList,
        errors=(400,),
    ),
    _of_batches(
        method="GET",
        path=_BATCH,
        operation_id="retrieveBatch",
        summary="A batch",
        handler=batches.show_batch,
        reply=Batch,
        errors=(400, 404),
    ),
    _of_batches(
        method="POST",
        path=f"{_BATCH}/cancel",
        operation_id="cancelBatch",
        summary="End a batch; what is answered stays",
        handler=batches.cancel_batch,
        reply=Batch,
        errors=(400, 404, 507),
    ),
)
