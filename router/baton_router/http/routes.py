"""The table of routes."""

from __future__ import annotations

from functools import partial
from typing import Final

from baton_router.http import server_routes, text_routes
from baton_router.http.chat.completions import chat
from baton_router.http.chat.replies import ChatChunk, ChatCompletion
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.completions.completions import complete
from baton_router.http.completions.schemas import Completion, CompletionRequest
from baton_router.http.debug import cluster, history, requests
from baton_router.http.debug.schemas import RequestDetails, RequestList
from baton_router.http.generate import GenerateReply, GenerateRequest, generate
from baton_router.http.invocations import invoke
from baton_router.http.messages.messages import MessagesQuery, count_tokens, create_message
from baton_router.http.messages.replies import ANTHROPIC, Message, MessageEvent, TokenCount
from baton_router.http.messages.schemas import CountRequest, MessagesRequest
from baton_router.http.page import show_chat, show_dashboard, show_docs, show_part
from baton_router.http.pooling.table import POOLING_ROUTES
from baton_router.http.render import render_chat, render_completion
from baton_router.http.responses.table import RESPONSE_ROUTES
from baton_router.http.route import BATCH_PRIORITY, Route, Tag

METRICS: Final = "/metrics"
DOCS: Final = "/docs"
_generating: Final = partial(Route, method="POST", errors=(404, 422, 429, 502, 503, 504))
_converting: Final = partial(Route, method="POST", errors=(404, 422, 429, 503, 504))

_page: Final = partial(Route, method="GET", tag=Tag.PAGES, media_type="text/html", needs_key=False)
_server: Final = partial(Route, method="GET", tag=Tag.SERVER)
_health: Final = partial(_server, handler=server_routes.health, errors=(503,), needs_key=False)
_debug: Final = partial(Route, method="GET", tag=Tag.DEBUG)
ROUTES: Final = (
    _page(
        path="/",
        operation_id="showChatPage",
        summary="A page to chat on",
        handler=show_chat,
    ),
    _page(
        path="/dashboard",
        operation_id="showDashboard",
        summary="A page that shows the cluster as it is now",
        handler=show_dashboard,
    ),
    _page(
        path=DOCS,
        operation_id="showDocs",
        summary="A page that shows this description, and sends requests",
        handler=show_docs,
    ),
    _page(
        path="/pages/{name}",
        operation_id="getPagePart",
        summary="Styles and scripts of the pages",
        handler=show_part,
        media_type="text/plain",
        errors=(404,),
    ),
    _generating(
        path="/v1/chat/completions",
        operation_id="createChatCompletion",
        tag=Tag.CHAT,
        summary="Answer a conversation",
        handler=chat,
        bodies=(ChatRequest,),
        batch_defaults={"priority": BATCH_PRIORITY},
        example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
        reply=ChatCompletion,
        chunk=ChatChunk,
    ),
    _generating(
        path="/v1/completions",
        operation_id="createCompletion",
        tag=Tag.COMPLETIONS,
        summary="Complete texts",
        handler=complete,
        bodies=(CompletionRequest,),
        batch_defaults={"priority": BATCH_PRIORITY},
        example={"prompt": "The os module", "max_tokens": 32},
        reply=Completion,
        chunk=Completion,
    ),
    _generating(
        path="/v1/messages",
        operation_id="createMessage",
        tag=Tag.MESSAGES,
        summary="Answer a conversation, in Anthropic's format",
        handler=create_message,
        query=MessagesQuery,
        bodies=(MessagesRequest,),
        example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
        reply=Message,
        chunk=MessageEvent,
        dialect=ANTHROPIC,
    ),
    _converting(
        path="/v1/messages/count_tokens",
        operation_id="countMessageTokens",
        tag=Tag.MESSAGES,
        summary="The number of tokens of such a conversation",
        handler=count_tokens,
        query=MessagesQuery,
        bodies=(CountRequest,),
        example={"messages": [{"role": "user", "content": "What is os.path?"}]},
        reply=TokenCount,
        dialect=ANTHROPIC,
    ),
    *RESPONSE_ROUTES,
    *POOLING_ROUTES,
    _generating(
        path="/invocations",
        operation_id="invoke",
        tag=Tag.CHAT,
        summary="Answer a conversation or complete texts, whichever the body asks for",
        handler=invoke,
        bodies=(ChatRequest, CompletionRequest),
        example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
    ),
    _converting(
        path="/v1/chat/completions/render",
        operation_id="renderChatCompletion",
        tag=Tag.CHAT,
        summary="The token ids of a conversation, and the settings that it would be answered with",
        handler=render_chat,
        bodies=(ChatRequest,),
        example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
        reply=GenerateRequest,
    ),
    _converting(
        path="/v1/completions/render",
        operation_id="renderCompletion",
        tag=Tag.COMPLETIONS,
        summary="The token ids of each text, and the settings that it would be completed with",
        handler=render_completion,
        bodies=(CompletionRequest,),
        example={"prompt": "The os module", "max_tokens": 32},
        reply=list[GenerateRequest],
    ),
    _generating(
        path="/inference/v1/generate",
        operation_id="generateTokens",
        tag=Tag.TOKENS,
        summary="Continue token ids with token ids",
        handler=generate,
        bodies=(GenerateRequest,),
        example={"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8}},
        reply=GenerateReply,
        chunk=GenerateReply,
    ),
    _converting(
        path="/tokenize",
        operation_id="tokenize",
        tag=Tag.TOKENS,
        summary="Token ids of a text or a conversation",
        handler=text_routes.tokenize,
        bodies=(text_routes.TokenizeRequest,),
        example={"prompt": "The os module"},
        reply=text_routes.TokenizeReply,
    ),
    _converting(
        path="/detokenize",
        operation_id="detokenize",
        tag=Tag.TOKENS,
        summary="The text of token ids",
        handler=text_routes.detokenize,
        bodies=(text_routes.DetokenizeRequest,),
        example={"tokens": [1, 2, 3]},
        reply=text_routes.DetokenizeReply,
    ),
    Route(
        method="GET",
        path="/v1/models",
        operation_id="listModels",
        tag=Tag.MODELS,
        summary="The model, by each of its names",
        handler=server_routes.list_models,
        reply=server_routes.ModelList,
    ),
    Route(
        method="GET",
        path="/v1/models/{model:path}",
        operation_id="retrieveModel",
        tag=Tag.MODELS,
        summary="The model by one of its names",
        handler=server_routes.show_model,
        reply=server_routes.Model,
        errors=(404,),
    ),
    _health(
        path="/health",
        operation_id="getHealth",
        summary="Whether a prompt can be served now",
    ),
    _server(
        path="/live",
        operation_id="getLive",
        summary="Whether the process answers: 200 while it drains or waits for workers, too",
        handler=server_routes.live,
        needs_key=False,
    ),
    _health(
        path="/ready",
        operation_id="getReady",
        summary="Whether a prompt can be served now, as probes ask",
    ),
    _health(
        path="/ping",
        operation_id="ping",
        summary="The same as /health",
    ),
    _health(
        method="POST",
        path="/ping",
        operation_id="postPing",
        summary="The same as GET /ping",
    ),
    _server(
        path="/version",
        operation_id="getVersion",
        summary="Baton's version",
        handler=server_routes.show_version,
        reply=server_routes.Version,
    ),
    _server(
        path="/load",
        operation_id="getLoad",
        summary="Calls that are open",
        handler=server_routes.load,
        reply=server_routes.Load,
    ),
    _server(
        path=METRICS,
        operation_id="getMetrics",
        summary="Metrics for Prometheus",
        handler=server_routes.metrics,
        media_type="text/plain",
    ),
    _debug(
        path="/debug/cluster",
        operation_id="getCluster",
        summary="Workers, queues, transfers and roles as they are now",
        handler=cluster.show_cluster,
        reply=cluster.ClusterState,
    ),
    _debug(
        path="/debug/history",
        operation_id="getHistory",
        summary="Latency percentiles and samples of rates and loads, of the last minutes",
        handler=history.show_history,
        query=history.HistoryQuery,
        reply=history.HistoryReply,
        errors=(400,),
    ),
    _debug(
        path="/debug/requests",
        operation_id="listRequests",
        summary="The latest requests, in short",
        handler=requests.list_requests,
        query=requests.ListQuery,
        reply=RequestList,
        errors=(400,),
    ),
    _debug(
        path="/debug/requests/{request_id:path}",
        operation_id="retrieveRequest",
        summary="Where a request's time went, why it ran where it did, and where its prompt came from",
        handler=requests.show_request,
        reply=RequestDetails,
        errors=(404,),
    ),
)

TOKENIZER_INFO: Final = Route(
    method="GET",
    path="/tokenizer_info",
    operation_id="getTokenizerInfo",
    tag=Tag.TOKENS,
    summary="The tokenizer's configuration and the chat template",
    handler=server_routes.tokenizer_info,
    media_type="application/json",
)
