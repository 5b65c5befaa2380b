"""The table of all routes."""

from __future__ import annotations

from typing import Final

from baton_router.http import (
    debug_cluster,
    debug_history,
    debug_requests,
    models,
    operator_routes,
    state,
    text_routes,
)
from baton_router.http.chat import chat
from baton_router.http.chat_replies import ChatChunk, ChatCompletion
from baton_router.http.chat_schemas import ChatRequest
from baton_router.http.completion_schemas import Completion, CompletionRequest
from baton_router.http.completions import complete
from baton_router.http.debug_schemas import RequestDetails, RequestList
from baton_router.http.generate import GenerateReply, GenerateRequest, generate
from baton_router.http.page import show_chat, show_dashboard, show_part
from baton_router.http.route import Route

METRICS: Final = "/metrics"
_GENERATES: Final = (404, 422, 429, 502, 503, 504)
_CONVERTS: Final = (404, 422, 429, 503, 504)
_CONTROLS: Final = (400, 429, 499, 502, 503, 504)

ROUTES: Final = (
    Route(method="GET", path="/", summary="A page to chat on", answer=show_chat, needs_key=False),
    Route(
        method="GET",
        path="/dashboard",
        summary="A page that shows the cluster as it is now",
        answer=show_dashboard,
        needs_key=False,
    ),
    Route(
        method="GET",
        path="/pages/{name}",
        summary="Styles and scripts of the pages",
        answer=show_part,
        errors=(404,),
        needs_key=False,
    ),
    Route(
        method="POST",
        path="/v1/chat/completions",
        summary="Answer a conversation",
        answer=chat,
        body=ChatRequest,
        reply=ChatCompletion,
        chunk=ChatChunk,
        errors=_GENERATES,
    ),
    Route(
        method="POST",
        path="/v1/completions",
        summary="Complete texts",
        answer=complete,
        body=CompletionRequest,
        reply=Completion,
        chunk=Completion,
        errors=_GENERATES,
    ),
    Route(
        method="POST",
        path="/inference/v1/generate",
        summary="Continue token ids with token ids",
        answer=generate,
        body=GenerateRequest,
        reply=GenerateReply,
        chunk=GenerateReply,
        errors=_GENERATES,
    ),
    Route(
        method="POST",
        path="/tokenize",
        summary="Token ids of a text or a conversation",
        answer=text_routes.tokenize,
        body=text_routes.TokenizeRequest,
        reply=text_routes.TokenizeReply,
        errors=_CONVERTS,
    ),
    Route(
        method="POST",
        path="/detokenize",
        summary="The text of token ids",
        answer=text_routes.detokenize,
        body=text_routes.DetokenizeRequest,
        reply=text_routes.DetokenizeReply,
        errors=_CONVERTS,
    ),
    Route(
        method="GET",
        path="/v1/models",
        summary="The model, by each of its names",
        answer=models.list_models,
        reply=models.ModelList,
    ),
    Route(
        method="GET",
        path="/v1/models/{model:path}",
        summary="The model by one of its names",
        answer=models.show_model,
        reply=models.Model,
        errors=(404,),
    ),
    Route(
        method="GET",
        path="/health",
        summary="Whether a prompt can be served now",
        answer=state.health,
        errors=(503,),
        needs_key=False,
    ),
    Route(
        method="GET",
        path="/ping",
        summary="The same",
        answer=state.health,
        errors=(503,),
        needs_key=False,
    ),
    Route(
        method="GET",
        path="/version",
        summary="Baton's version",
        answer=state.show_version,
        reply=state.Version,
    ),
    Route(method="GET", path="/load", summary="Calls that are open", answer=state.load, reply=state.Load),
    Route(method="GET", path=METRICS, summary="Metrics for Prometheus", answer=state.metrics),
    Route(
        method="GET",
        path="/debug/cluster",
        summary="Workers, queues, transfers and roles as they are now",
        answer=debug_cluster.show_cluster,
        reply=debug_cluster.ClusterState,
    ),
    Route(
        method="GET",
        path="/debug/history",
        summary="Latency percentiles and samples of rates and loads, of the last minutes",
        answer=debug_history.show_history,
        query=debug_history.HistoryQuery,
        reply=debug_history.HistoryReply,
        errors=(400,),
    ),
    Route(
        method="GET",
        path="/debug/requests",
        summary="The latest requests, in short",
        answer=debug_requests.list_requests,
        query=debug_requests.ListQuery,
        reply=RequestList,
        errors=(400,),
    ),
    Route(
        method="GET",
        path="/debug/requests/{request_id:path}",
        summary="Where a request's time went, why it ran where it did, and where its prompt came from",
        answer=debug_requests.show_request,
        reply=RequestDetails,
        errors=(404,),
    ),
)

OPERATOR_ROUTES: Final = (
    Route(
        method="POST",
        path="/reset_prefix_cache",
        summary="Forget cached prefixes",
        answer=operator_routes.reset_prefix_cache,
        reply=operator_routes.CacheReset,
        errors=_CONTROLS,
    ),
    Route(
        method="POST",
        path="/sleep",
        summary="Give up the workers' memory",
        answer=operator_routes.sleep,
        query=operator_routes.SleepQuery,
        errors=_CONTROLS,
    ),
    Route(
        method="POST",
        path="/wake_up",
        summary="Take it back",
        answer=operator_routes.wake_up,
        query=operator_routes.WakeUpQuery,
        errors=_CONTROLS,
    ),
    Route(
        method="GET",
        path="/is_sleeping",
        summary="Whether the workers sleep",
        answer=operator_routes.is_sleeping,
        reply=operator_routes.SleepState,
        errors=_CONTROLS,
    ),
    Route(
        method="POST",
        path="/set_role",
        summary="Have a worker prefer prefill, decode, or both",
        answer=operator_routes.set_role,
        query=operator_routes.SetRoleQuery,
        reply=operator_routes.OpenWork,
        errors=(404, *_CONTROLS),
    ),
    Route(
        method="POST",
        path="/drain",
        summary="Have a worker take no new requests",
        answer=operator_routes.drain,
        query=operator_routes.DrainQuery,
        reply=operator_routes.OpenWork,
        errors=(404, *_CONTROLS),
    ),
    Route(
        method="POST",
        path="/undrain",
        summary="Have it take requests again",
        answer=operator_routes.undrain,
        query=operator_routes.WorkerQuery,
        reply=operator_routes.OpenWork,
        errors=(404, *_CONTROLS),
    ),
    Route(
        method="POST",
        path="/start_profile",
        summary="Begin a trace of what each worker computes",
        answer=operator_routes.start_profile,
        errors=_CONTROLS,
    ),
    Route(
        method="POST",
        path="/stop_profile",
        summary="End the traces and write them",
        answer=operator_routes.stop_profile,
        errors=_CONTROLS,
    ),
    Route(
        method="POST",
        path="/collective_rpc",
        summary="Call a function at each worker",
        answer=operator_routes.collective_rpc,
        body=operator_routes.CollectiveRpcRequest,
        reply=operator_routes.CollectiveRpcReply,
        errors=_CONTROLS,
    ),
    Route(
        method="POST",
        path="/v1/load_lora_adapter",
        summary="Load an adapter",
        answer=operator_routes.refuse_adapter,
        body=operator_routes.LoadAdapterRequest,
        errors=(501,),
    ),
    Route(
        method="POST",
        path="/v1/unload_lora_adapter",
        summary="Forget an adapter",
        answer=operator_routes.refuse_adapter,
        body=operator_routes.UnloadAdapterRequest,
        errors=(501,),
    ),
)
