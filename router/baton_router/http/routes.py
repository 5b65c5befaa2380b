"""The tables of routes, gathered from the modules of their handlers."""

from __future__ import annotations

from typing import Final

from baton_router.http import (
    generate,
    operator_routes,
    page,
    render,
    server_routes,
    text_routes,
    weight_routes,
)
from baton_router.http.batches import batches, files
from baton_router.http.chat import completions as chat
from baton_router.http.completions import completions
from baton_router.http.debug import cluster, requests
from baton_router.http.messages import messages
from baton_router.http.pooling import cohere, embeddings, scoring
from baton_router.http.responses import responses, stored

ROUTES: Final = (
    *(*page.ROUTES, *chat.ROUTES, *completions.ROUTES, *messages.ROUTES, *responses.ROUTES, *stored.ROUTES),
    *(*embeddings.ROUTES, *cohere.ROUTES, *scoring.ROUTES, *render.ROUTES, *generate.ROUTES),
    *(*text_routes.ROUTES, *server_routes.ROUTES, *cluster.ROUTES, *requests.ROUTES),
)
TOKENIZER_ROUTES: Final = tuple(server_routes.TOKENIZER)
ADAPTER_ROUTES: Final = tuple(operator_routes.ADAPTERS)
"""Routes that add and remove LoRA adapters."""
OPERATOR_ROUTES: Final = (*operator_routes.ROUTES, *ADAPTER_ROUTES, *weight_routes.ROUTES)
BATCH_ROUTES: Final = (*files.ROUTES, *batches.ROUTES)
"""Routes of a router with a folder for files."""
