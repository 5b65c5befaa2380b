"""POST /v1/embeddings, /pooling and /classify: what is pooled of each prompt by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

import msgspec
from starlette.responses import Response

from baton_core.errors import InvalidRequestError
from baton_core.requests.pooling import PoolingTask
from baton_core.worker.step_plan import PooledValues
from baton_router.http.calls import Call
from baton_router.http.json_pieces import as_list
from baton_router.http.pooling.requests import (
    ListReply,
    list_reply,
    pool,
    pooled_model,
    read_prompts,
    task_request,
    usage_of_prompts,
)
from baton_router.http.pooling.schemas import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequestBody,
    VectorFields,
)
from baton_router.http.pooling.vectors import Numbers, bytes_of, numbers_of, text_of
from baton_router.http.route import BATCH_PRIORITY, GENERATING, Routes, Tag
from baton_router.requests.generation import Finished
from baton_router.requests.pooling import floats_of

ROUTES: Final = Routes(method="POST", tag=Tag.POOLING, errors=GENERATING)

METADATA_HEADER: Final = "metadata"
"""Header that tells of the vectors in a reply of bytes, as JSON."""
T = TypeVar("T")
_LARGE_BYTES: Final = 2**18
"""Results of a call from which on they are written in a thread."""


class EmbeddingItem(msgspec.Struct, kw_only=True):
    """One embedding."""

    index: int
    object: Literal["embedding"] = "embedding"
    embedding: Numbers | str
    """Numbers, or base64 of their bytes; of a model that embeds tokens a row for each token."""


class EmbeddingReply(ListReply, kw_only=True):
    """The embeddings of all prompts."""

    data: list[EmbeddingItem]


class PooledItem(msgspec.Struct, kw_only=True):
    """The result of pooling one prompt."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: Numbers | str


class PoolingReply(ListReply, kw_only=True):
    """The results of pooling all prompts."""

    data: list[PooledItem]


class ClassItem(msgspec.Struct, kw_only=True):
    """The classes of one prompt."""

    index: int
    label: str | None
    """The name of the most likely class."""
    probs: list[float]
    num_classes: int


class ClassifyReply(ListReply, kw_only=True):
    """The classes of all prompts."""

    data: list[ClassItem]


@ROUTES.route(
    "/v1/embeddings",
    "createEmbedding",
    "Embed texts",
    batch_defaults={"priority": BATCH_PRIORITY},
    example={"input": "The os module"},
)
async def embed(call: Call[EmbeddingRequest]) -> EmbeddingReply | Response:
    """Reply with the embedding of each prompt.

    Raises:
        InvalidRequestError: a field is wrong, or the model does not embed; the message names the field.
        RequestError: as `pool`.
    """
    body, model = call.body, pooled_model(call)
    task = PoolingTask.EMBED
    if task not in model.tasks and PoolingTask.TOKEN_EMBED in model.tasks:
        task = PoolingTask.TOKEN_EMBED
        if body.encoding_format not in (None, "float"):
            allowed = "float, for a model that embeds each token"
            raise InvalidRequestError("encoding_format", body.encoding_format, allowed)
    prompts = await call.read(read_prompts, body)
    results, ends = await pool(call, body, prompts, task_request(body, task, body.dimensions))
    if body.encoding_format in ("bytes", "bytes_only"):
        return await _bytes_response(call, body, results, ends, "embd")
    written = await _written(call, body, results)
    items = (EmbeddingItem(index=index, embedding=one) for index, one in enumerate(written))
    return list_reply(EmbeddingReply, call, "embd", as_list(items, len(results)), ends)


@ROUTES.route("/pooling", "pool", "Pool the hidden states of prompts", example={"input": "The os module"})
async def pool_prompts(call: Call[PoolingRequestBody]) -> PoolingReply | Response:
    """Reply with what is pooled of each prompt.

    Raises:
        InvalidRequestError: a field is wrong, or the model lacks the task; the message names the field.
        RequestError: as `pool`.
    """
    body, model = call.body, pooled_model(call)
    name = PoolingTask.CLASSIFY if body.task == "score" else body.task
    task = model.tasks[0] if name is None else PoolingTask(name)
    prompts = await call.read(read_prompts, body)
    results, ends = await pool(call, body, prompts, task_request(body, task, body.dimensions))
    if body.encoding_format in ("bytes", "bytes_only"):
        return await _bytes_response(call, body, results, ends, "pool")
    written = await _written(call, body, results)
    items = (PooledItem(index=index, data=one) for index, one in enumerate(written))
    return list_reply(PoolingReply, call, "pool", as_list(items, len(results)), ends)


@ROUTES.route("/classify", "classify", "Classify texts", example={"input": "The os module"})
async def classify(call: Call[ClassifyRequest]) -> ClassifyReply:
    """Reply with the classes of each prompt.

    Raises:
        InvalidRequestError: a field is wrong, or the model does not classify; the message names the field.
        RequestError: as `pool`.
    """
    body, model = call.body, pooled_model(call)
    prompts = await call.read(read_prompts, body)
    results, ends = await pool(call, body, prompts, task_request(body, PoolingTask.CLASSIFY))
    items = (_class_item(index, one, model.labels) for index, one in enumerate(results))
    return list_reply(ClassifyReply, call, "classify", as_list(items, len(results)), ends)


def _class_item(index: int, pooled: PooledValues, labels: Sequence[str]) -> ClassItem:
    probs = list(floats_of(pooled))
    best = max(range(len(probs)), key=probs.__getitem__)
    return ClassItem(index=index, label=labels[best], probs=probs, num_classes=len(probs))


async def _written(
    call: Call[Any], body: VectorFields, results: Sequence[PooledValues]
) -> Iterable[Numbers | str]:
    """Return the results as JSON has them: numbers are made while they are written."""
    if body.encoding_format != "base64":
        return map(numbers_of, results)
    write = partial(text_of, dtype=body.embed_dtype or "float32", endianness=body.endianness or "little")
    return await _beside_loop(call, write, results)


async def _beside_loop(
    call: Call[Any], write: Callable[[PooledValues], T], results: Sequence[PooledValues]
) -> list[T]:
    """Write results: large ones in a thread."""
    if sum(len(one.values) for one in results) < _LARGE_BYTES:
        return list(map(write, results))
    return await call.state.service.run_in_thread(call.tenant, lambda: list(map(write, results)))


async def _bytes_response(
    call: Call[Any],
    body: VectorFields,
    results: Sequence[PooledValues],
    ends: Sequence[Finished],
    kind: str,
) -> Response:
    """Return the bytes of all results one after the other; a header tells of them, if it is wanted."""
    dtype, endianness = body.embed_dtype or "float32", body.endianness or "little"
    parts = await _beside_loop(call, partial(bytes_of, dtype=dtype, endianness=endianness), results)
    headers = {}
    if body.encoding_format == "bytes":
        data, start = [], 0
        for index, (one, part) in enumerate(zip(results, parts, strict=True)):
            place = {"index": index, "start": start, "end": start + len(part), "shape": list(one.shape)}
            data.append({**place, "embed_dtype": dtype, "endianness": endianness})
            start += len(part)
        told = {
            "id": f"{kind}-{call.request_id}",
            "created": int(time.time()),
            "model": body.model or call.state.service.model_names[0],
            "data": data,
            "usage": usage_of_prompts(ends),
        }
        headers[METADATA_HEADER] = msgspec.json.encode(told).decode()
    return Response(b"".join(parts), headers=headers, media_type="application/octet-stream")
