"""Routes of the server itself: models, health, version, load, metrics."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import msgspec
from starlette.responses import Response

from baton_router.group.frames import METRICS
from baton_router.group.metric_pages import merge_pages
from baton_router.http.calls import Call
from baton_router.http.route import Routes, Tag
from baton_router.text.model_folder import read_json
from baton_service.exposition import CONTENT_TYPE

ROUTES: Final = Routes(tag=Tag.SERVER)
TOKENIZER: Final = Routes(tag=Tag.TOKENS)
"""The route about the tokenizer, which the operator enables."""
METRICS_PATH: Final = "/metrics"
_health: Final = partial(ROUTES.route, errors=(503,), needs_key=False)

RETRY_AFTER_S: Final = 1


class Model(msgspec.Struct, kw_only=True):
    """One name of the model."""

    id: str
    object: str = "model"
    created: int
    """Start of the router, in seconds since 1970."""
    owned_by: str = "baton"
    root: str
    """The folder or id that it is served from: load generators find its tokenizer there."""
    parent: str | None = None
    """The base model of an adapter."""
    max_model_len: int
    permission: list[dict[str, Any]] = []


class ModelList(msgspec.Struct, kw_only=True):
    """The list of the model's names."""

    object: str = "list"
    data: list[Model]


@ROUTES.route("/v1/models", "listModels", "The model, by each of its names", tag=Tag.MODELS)
async def list_models(call: Call[None]) -> ModelList:
    names = call.state.service.adapters.names
    return ModelList(data=[_describe(call, name) for name in names])


@ROUTES.route(
    "/v1/models/{model:path}",
    "retrieveModel",
    "The model by one of its names",
    tag=Tag.MODELS,
    reply=Model,
    errors=(404,),
)
async def show_model(call: Call[None]) -> Model | ModelList:
    """Reply with a model, or the list where there is only a slash.

    Raises:
        RequestError: NOT_FOUND.
    """
    name = call.request.path_params["model"]
    if not name:
        return await list_models(call)
    call.state.service.adapters.find(name)
    return _describe(call, name)


def _describe(call: Call[None], name: str) -> Model:
    service = call.state.service
    adapter = service.adapters.find(name)
    return Model(
        id=name,
        created=call.state.started_at,
        root=call.state.model if adapter is None else adapter.path,
        parent=None if adapter is None else service.adapters.parent,
        max_model_len=service.max_model_len,
    )


class Version(msgspec.Struct, kw_only=True):
    """Version of Baton."""

    version: str


class Load(msgspec.Struct, kw_only=True):
    """Load of the router."""

    server_load: int
    """Calls that are open now, over HTTP and gRPC."""


@_health("/health", "getHealth", "Whether a prompt can be served now")
@_health("/ready", "getReady", "Whether a prompt can be served now, as probes ask")
@_health("/ping", "ping", "The same as /health")
@_health("/ping", "postPing", "The same as GET /ping", method="POST")
async def health(call: Call[None]) -> Response:
    """Reply with 200 when a prompt can be served now, else with 503 and the reason.

    Broken pairs of workers and workers that are there no longer are listed too.
    """
    service = call.state.service
    why_not = service.why_not_ready
    lines = [line for line in (why_not, *service.missing_workers, *service.broken_pairs) if line]
    text = "".join(f"{line}\n" for line in lines)
    headers = {"retry-after": str(RETRY_AFTER_S)} if why_not else None
    status = 503 if why_not else 200
    return Response(text, status, headers, "text/plain") if text else Response()


@ROUTES.route(
    "/live",
    "getLive",
    "Whether the process answers: 200 while it drains or waits for workers, too",
    needs_key=False,
)
async def live(call: Call[None]) -> Response:
    """Reply with 200: the loop answers, so a restart would help nobody."""
    return Response()


@ROUTES.route("/version", "getVersion", "Baton's version")
async def show_version(call: Call[None]) -> Version:
    return Version(version=version("baton"))


@TOKENIZER.route(
    "/tokenizer_info",
    "getTokenizerInfo",
    "The tokenizer's configuration and the chat template",
    reply=None,
    media_type="application/json",
)
async def tokenizer_info(call: Call[None]) -> dict[str, Any]:
    """Reply with the tokenizer's configuration, and with the chat template in force."""
    service = call.state.service
    path = service.model.tokenizer_path / "tokenizer_config.json"
    config = await asyncio.to_thread(read_json, path, is_optional=True)
    return {**config, "chat_template": service.tokenizer.chat_template}


@ROUTES.route("/load", "getLoad", "Calls that are open")
async def load(call: Call[None]) -> Load:
    return Load(server_load=call.state.service.num_calls)


@ROUTES.route(METRICS_PATH, "getMetrics", "Metrics for Prometheus", media_type="text/plain")
async def metrics(call: Call[None]) -> Response:
    state = call.state
    if state.ask_processes is not None:
        pages = await state.ask_processes(METRICS)
        page: str | bytes = merge_pages({index: page.decode() for index, page in pages.items()})
    else:
        page = state.metrics.exposition(is_ready=state.service.is_ready).text()
    return Response(page, media_type=CONTENT_TYPE)
