"""The routes of `/v1/batches`: begin, list, show and cancel batches of a key."""

from __future__ import annotations

from typing import Final

from baton_core.errors import InvalidRequestError
from baton_router.batches.batch_records import PREFIX
from baton_router.core.batches.batch import Batch
from baton_router.http.batches.files import (
    batches_of,
    checked_age,
    find_file,
    not_found,
    on_disk,
    refreshed_batches,
)
from baton_router.http.batches.schemas import BatchesQuery, BatchList, CreateBatchRequest
from baton_router.http.calls import Call
from baton_router.http.kept import check_limit, check_metadata, page_of, start_after_sorted
from baton_router.http.route import Routes, Tag

ROUTES: Final = Routes(tag=Tag.BATCHES)
_BATCH: Final = "/v1/batches/{batch_id}"

MAX_LISTED: Final = 100


@ROUTES.route(
    "/v1/batches",
    "createBatch",
    "Answer the requests of a file, between those of others",
    method="POST",
    example={
        "input_file_id": "file-0123456789abcdef01234567",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    errors=(404, 507),
)
async def create_batch(call: Call[CreateBatchRequest]) -> Batch:
    """Begin a batch over a file of requests.

    Raises:
        InvalidRequestError: a field is wrong, or a bound is reached; the message names it.
        HttpError: 404, there is no such file; 507, the disk is full.
    """
    body, batches = call.body, batches_of(call)
    if body.endpoint not in batches.defaults:
        raise InvalidRequestError("endpoint", body.endpoint, ", ".join(batches.defaults))
    check_metadata(body.metadata or {})
    expires = body.output_expires_after
    age_s = checked_age(call, "output_expires_after.seconds", expires.seconds) if expires else None
    file = await find_file(call, "input_file_id", body.input_file_id)
    if file.purpose != "batch":
        allowed = "the id of a file of purpose batch"
        raise InvalidRequestError("input_file_id", f"one of purpose {file.purpose}", allowed)
    with on_disk("the batch"):
        return await batches.create(call.tenant, file, body.endpoint, body.metadata, age_s)


@ROUTES.route("/v1/batches", "listBatches", "The batches of this key, the latest first", errors=(400,))
async def list_batches(call: Call[None], query: BatchesQuery) -> BatchList:
    """Raises InvalidRequestError: a parameter is out of range."""
    found = (await refreshed_batches(call)).batches_of(call.tenant)[::-1]
    check_limit(query.limit, MAX_LISTED)
    ids = [batch.id for batch in found]
    start = start_after_sorted(ids, query.after, PREFIX, is_reversed=True)
    return BatchList(**page_of(found, ids, start, query.limit))


@ROUTES.route(_BATCH, "retrieveBatch", "A batch", errors=(400, 404))
async def show_batch(call: Call[None]) -> Batch:
    """Raises HttpError: 404."""
    return await _find(call)


@ROUTES.route(
    f"{_BATCH}/cancel",
    "cancelBatch",
    "End a batch; what is answered stays",
    method="POST",
    errors=(400, 404, 507),
)
async def cancel_batch(call: Call[None]) -> Batch:
    """Raises HttpError: 404, or 507, the disk is full; InvalidRequestError: it is over."""
    batch = await _find(call)
    with on_disk("the cancellation"):
        return await batches_of(call).cancel(batch)


async def _find(call: Call[None]) -> Batch:
    name = call.request.path_params["batch_id"]
    batch = (await refreshed_batches(call)).find(call.tenant, name)
    if batch is None:
        raise not_found("batch_id", name, "batch")
    return batch
