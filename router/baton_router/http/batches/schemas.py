"""Bodies, parameters and replies of `/v1/files` and `/v1/batches`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from baton_router.batches.file_store import FileObject
from baton_router.core.batches.batch import WINDOW, Batch
from baton_router.http.route import Query
from baton_router.http.sampling_fields import Fields


class UploadRequest(msgspec.Struct, kw_only=True):
    """A file to upload, as fields of a form; `expires_after[anchor]` and `expires_after[seconds]` are two."""

    file: Annotated[str, msgspec.Meta(extra_json_schema={"format": "binary"})]
    """Its content: requests, one a line."""
    purpose: Literal["batch"]
    """Its use."""
    anchor: Literal["created_at"] = msgspec.field(name="expires_after[anchor]", default="created_at")
    """The time from which its age counts."""
    seconds: int | None = msgspec.field(name="expires_after[seconds]", default=None)
    """Its age at which it is forgotten, from 3600. Default: --max-file-age, also the most."""


class ExpiresAfter(Fields, kw_only=True):
    """The age at which a file is forgotten."""

    anchor: Literal["created_at"]
    """The time from which its age counts."""
    seconds: int
    """From 3600 to --max-file-age."""


class CreateBatchRequest(Fields, kw_only=True):
    """Answer the requests of a file."""

    input_file_id: str
    """The id of a file with requests, one a line."""
    endpoint: str
    """The route of all of them, such as /v1/chat/completions."""
    completion_window: Literal["24h"] = WINDOW
    """The time for the whole batch."""
    metadata: dict[str, str] | None = None
    """At most 16 texts, with names of at most 64 characters, of at most 512 each."""
    output_expires_after: ExpiresAfter | None = None
    """Age at which the output is forgotten. Default: --max-file-age."""


class FilesQuery(Query, kw_only=True):
    purpose: str = ""
    """Lists only files of this purpose: batch or batch_output."""
    limit: int = 10_000
    """Files to list, 1 to 10000."""
    order: Literal["asc", "desc"] = "desc"
    """The oldest files come first, or the latest."""
    after: str = ""
    """The id of a file: the list begins after it."""


class BatchesQuery(Query, kw_only=True):
    limit: int = 20
    """Batches to list, 1 to 100."""
    after: str = ""
    """The id of a batch: the list begins after it."""


class FileList(msgspec.Struct, kw_only=True):
    """Files of a key."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchList(msgspec.Struct, kw_only=True):
    """Batches of a key."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, kw_only=True):
    """A file that is no longer there."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
