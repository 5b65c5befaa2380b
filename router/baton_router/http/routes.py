"""The table of routes."""

from __future__ import annotations

from functools import partial
from typing import Final

from baton_router.http import server_routes, text_routes
from baton_router.http.chat.completions import chat
from baton_router.http.chat.replies import ChatChunk, ChatCompletion
from baton_router.http.completions.completions import complete, invoke
from baton_router.http.completions.schemas import Completion
from baton_router.http.debug import cluster, history, requests
from baton_router.http.debug.schemas import RequestDetails, RequestList
from baton_router.http.generate import GenerateReply, GenerateRequest, generate
from baton_router.http.messages.messages import MessagesQuery, count_tokens, create_message
from baton_router.http.messages.replies import ANTHROPIC, Message, MessageEvent, TokenCount
from baton_router.http.page import show_chat, show_dashboard, show_docs, show_part
from baton_router.http.pooling.table import POOLING_ROUTES
from baton_router.http.render import render_chat, render_completion
from baton_router.http.responses.table import RESPONSE_ROUTES
from baton_router.http.route import BATCH_PRIORITY, Route, Tag

METRICS: Final = "/metrics"
DOCS: Final = "/docs"
_generating: Final = partial(Route, method="POST", errors=(404, 422, 429, 502, 503, 504))
_converting: Final = partial(Route, method="POST", errors=(404, 422, 429, 503, 504))

_page: Final = partial(Route, tag=Tag.PAGES, media_type="text/html", needs_key=False)
_server: Final = partial(Route, tag=Tag.SERVER)
_health: Final = partial(_server, handler=server_routes.health, errors=(503,), needs_key=False)
_debug: Final = partial(Route, tag=Tag.DEBUG)
ROUTES: Final = (
    _page("/", "showChatPage", "A page to chat on", show_chat),
    _page("/dashboard", "showDashboard", "A page that shows the cluster as it is now", show_dashboard),
    _page(DOCS, "showDocs", "A page that shows this description, and sends requests", show_docs),
    _page(
        "/pages/{name}",
        "getPagePart",
        "Styles and scripts of the pages",
        show_part,
        media_type="text/plain",
        errors=(404,),
    ),
    _generating(
        "/v1/chat/completions",
        "createChatCompletion",
        "Answer a conversation",
        chat,
        tag=Tag.CHAT,
        batch_defaults={"priority": BATCH_PRIORITY},
        example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
        reply=ChatCompletion,
        chunk=ChatChunk,
    ),
    _generating(
        "/v1/completions",
        "createCompletion",
        "Complete texts",
        complete,
        tag=Tag.COMPLETIONS,
        batch_defaults={"priority": BATCH_PRIORITY},
        example={"prompt": "The os module", "max_tokens": 32},
        reply=Completion,
        chunk=Completion,
    ),
    _generating(
        "/v1/messages",
        "createMessage",
        "Answer a conversation, in Anthropic's format",
        create_message,
        tag=Tag.MESSAGES,
        query=MessagesQuery,
        example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
        reply=Message,
        chunk=MessageEvent,
        dialect=ANTHROPIC,
    ),
    _converting(
        "/v1/messages/count_tokens",
        "countMessageTokens",
        "The number of tokens of such a conversation",
        count_tokens,
        tag=Tag.MESSAGES,
        query=MessagesQuery,
        example={"messages": [{"role": "user", "content": "What is os.path?"}]},
        reply=TokenCount,
        dialect=ANTHROPIC,
    ),
    *RESPONSE_ROUTES,
    *POOLING_ROUTES,
    _generating(
        "/invocations",
        "invoke",
        "Answer a conversation or complete texts, whichever the body asks for",
        invoke,
        tag=Tag.CHAT,
        example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
    ),
    _converting(
        "/v1/chat/completions/render",
        "renderChatCompletion",
        "The token ids of a conversation, and the settings that it would be answered with",
        render_chat,
        tag=Tag.CHAT,
        example={"messages": [{"role": "user", "content": "What is os.path?"}], "max_tokens": 32},
        reply=GenerateRequest,
    ),
    _converting(
        "/v1/completions/render",
        "renderCompletion",
        "The token ids of each text, and the settings that it would be completed with",
        render_completion,
        tag=Tag.COMPLETIONS,
        example={"prompt": "The os module", "max_tokens": 32},
        reply=list[GenerateRequest],
    ),
    _generating(
        "/inference/v1/generate",
        "generateTokens",
        "Continue token ids with token ids",
        generate,
        tag=Tag.TOKENS,
        example={"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8}},
        reply=GenerateReply,
        chunk=GenerateReply,
    ),
    _converting(
        "/tokenize",
        "tokenize",
        "Token ids of a text or a conversation",
        text_routes.tokenize,
        tag=Tag.TOKENS,
        example={"prompt": "The os module"},
        reply=text_routes.TokenizeReply,
    ),
    _converting(
        "/detokenize",
        "detokenize",
        "The text of token ids",
        text_routes.detokenize,
        tag=Tag.TOKENS,
        example={"tokens": [1, 2, 3]},
        reply=text_routes.DetokenizeReply,
    ),
    Route(
        "/v1/models",
        "listModels",
        "The model, by each of its names",
        server_routes.list_models,
        tag=Tag.MODELS,
        reply=server_routes.ModelList,
    ),
    Route(
        "/v1/models/{model:path}",
        "retrieveModel",
        "The model by one of its names",
        server_routes.show_model,
        tag=Tag.MODELS,
        reply=server_routes.Model,
        errors=(404,),
    ),
    _health("/health", "getHealth", "Whether a prompt can be served now"),
    _server(
        "/live",
        "getLive",
        "Whether the process answers: 200 while it drains or waits for workers, too",
        server_routes.live,
        needs_key=False,
    ),
    _health("/ready", "getReady", "Whether a prompt can be served now, as probes ask"),
    _health("/ping", "ping", "The same as /health"),
    _health("/ping", "postPing", "The same as GET /ping", method="POST"),
    _server(
        "/version", "getVersion", "Baton's version", server_routes.show_version, reply=server_routes.Version
    ),
    _server("/load", "getLoad", "Calls that are open", server_routes.load, reply=server_routes.Load),
    _server(METRICS, "getMetrics", "Metrics for Prometheus", server_routes.metrics, media_type="text/plain"),
    _debug(
        "/debug/cluster",
        "getCluster",
        "Workers, queues, transfers and roles as they are now",
        cluster.show_cluster,
        reply=cluster.ClusterState,
    ),
    _debug(
        "/debug/history",
        "getHistory",
        "Latency percentiles and samples of rates and loads, of the last minutes",
        history.show_history,
        query=history.HistoryQuery,
        reply=history.HistoryReply,
        errors=(400,),
    ),
    _debug(
        "/debug/requests",
        "listRequests",
        "The latest requests, in short",
        requests.list_requests,
        query=requests.ListQuery,
        reply=RequestList,
        errors=(400,),
    ),
    _debug(
        "/debug/requests/{request_id:path}",
        "retrieveRequest",
        "Where a request's time went, why it ran where it did, and where its prompt came from",
        requests.show_request,
        reply=RequestDetails,
        errors=(404,),
    ),
)

TOKENIZER_INFO: Final = Route(
    "/tokenizer_info",
    "getTokenizerInfo",
    "The tokenizer's configuration and the chat template",
    server_routes.tokenizer_info,
    tag=Tag.TOKENS,
    media_type="application/json",
)
